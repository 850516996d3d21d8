//! The compiled lane: the C interface that `stepgrade.compiled` calls with ctypes.
//!
//! All `unsafe` is in this file. Pointers that come in are those of Python's buffers, with their length; a lane
//! is used by one thread at a time, and never after `free`. No panic leaves a function.

#![deny(unsafe_op_in_unsafe_fn)]

mod columns;
mod intern;
mod json;
mod kineto;

use columns::Table;
use json::{Fault, Outcome};
use kineto::{Lane, Limits, TABLES};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

/// Raised whenever the interface changes, so that a library of another version is not used.
const VERSION: u32 = 1;

const DONE: i32 = 0;
const ODD: i32 = 1;
const NO_MEMORY: i32 = 2;
const BROKEN: i32 = 3;

/// What a call found: bytes aside, frames to be known, pending rows, whether times need text, and how many
/// texts there are of each kind.
const REPORT: usize = 11;

#[no_mangle]
pub extern "C" fn stepgrade_version() -> u32 {
    VERSION
}

fn guarded(work: impl FnOnce() -> Outcome<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => DONE,
        Ok(Err(Fault::Odd)) => ODD,
        Ok(Err(Fault::NoMemory)) => NO_MEMORY,
        Err(_) => BROKEN,
    }
}

/// Make a lane; null if there is no memory, or the setup is not one.
///
/// # Safety
/// `setup` must be readable for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_new(
    setup: *const u8,
    size: usize,
    long_frame_ns: i64,
    time_us: i64,
    exact_ns: i64,
) -> *mut Lane {
    let setup = unsafe { slice::from_raw_parts(setup, size) };
    let mut made = std::ptr::null_mut();
    guarded(|| {
        let lane = Lane::new(setup, Limits { long_frame_ns, time_us, exact_ns })?;
        made = Box::into_raw(Box::new(lane));
        Ok(())
    });
    made
}

/// # Safety
/// `lane` must come from `stepgrade_kineto_new`, and is gone afterwards.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_free(lane: *mut Lane) {
    if !lane.is_null() {
        let lane = unsafe { Box::from_raw(lane) };
        guarded(|| {
            drop(lane);
            Ok(())
        });
    }
}

/// Check a chunk; unless the answer is DONE, nothing of it is kept.
///
/// # Safety
/// `text` must be readable for `size` bytes, `report` writable for REPORT numbers.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_scan(
    lane: *mut Lane,
    text: *const u8,
    size: usize,
    report: *mut i64,
) -> i32 {
    let (lane, text) = unsafe { (&mut *lane, slice::from_raw_parts(text, size)) };
    let report = unsafe { slice::from_raw_parts_mut(report, REPORT) };
    guarded(|| {
        let outcome = lane.scan(text);
        fill(report, lane);
        outcome
    })
}

/// Add the rows of the chunk that was scanned last; only an answer of DONE leaves the lane usable.
///
/// # Safety
/// As for `stepgrade_kineto_scan`, with the same text.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_commit(
    lane: *mut Lane,
    text: *const u8,
    size: usize,
    report: *mut i64,
) -> i32 {
    let (lane, text) = unsafe { (&mut *lane, slice::from_raw_parts(text, size)) };
    let report = unsafe { slice::from_raw_parts_mut(report, REPORT) };
    guarded(|| {
        lane.commit(text)?;
        fill(report, lane);
        Ok(())
    })
}

/// Say what is known of the frames from number `first` on.
///
/// # Safety
/// `flags` must be readable for `count` bytes.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_classify(
    lane: *mut Lane,
    first: usize,
    flags: *const u8,
    count: usize,
) -> i32 {
    let (lane, flags) = unsafe { (&mut *lane, slice::from_raw_parts(flags, count)) };
    guarded(|| {
        let known = lane.frame_flags.get_mut(first..).and_then(|known| known.get_mut(..count));
        known.ok_or(Fault::Odd)?.copy_from_slice(flags);
        Ok(())
    })
}

/// Forget the rows of all tables.
///
/// # Safety
/// `lane` must come from `stepgrade_kineto_new`.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_clear(lane: *mut Lane) -> i32 {
    let lane = unsafe { &mut *lane };
    guarded(|| {
        lane.tables.iter_mut().for_each(Table::clear);
        Ok(())
    })
}

/// Return where a buffer begins, and its size in bytes; it is valid until the next call that changes the lane.
///
/// Below 100 is a column of table `number / 12`; 100 is the text aside, 101 the counts of categories; then come
/// the texts of each kind (even numbers) and where they end.
///
/// # Safety
/// `size` must be writable.
#[no_mangle]
pub unsafe extern "C" fn stepgrade_kineto_buffer(
    lane: *const Lane,
    number: usize,
    size: *mut usize,
) -> *const u8 {
    let (lane, size) = unsafe { (&*lane, &mut *size) };
    let (found, bytes) = match catch_unwind(AssertUnwindSafe(|| buffer(lane, number))) {
        Ok(Some(found)) => found,
        _ => (std::ptr::null(), 0),
    };
    *size = bytes;
    found
}

const COLUMNS: usize = 12;
const ASIDE: usize = 100;
const COUNTS: usize = 101;
const TEXTS: usize = 102;

fn texts(lane: &Lane) -> [&intern::Interner; 7] {
    [
        &lane.names,
        &lane.threads,
        &lane.inputs,
        &lane.launches,
        &lane.collectives,
        &lane.category_names,
        &lane.frames,
    ]
}

fn bytes_of<T>(items: &[T]) -> (*const u8, usize) {
    (items.as_ptr().cast(), std::mem::size_of_val(items))
}

fn buffer(lane: &Lane, number: usize) -> Option<(*const u8, usize)> {
    if number == ASIDE {
        return Some(bytes_of(&lane.aside));
    }
    if number == COUNTS {
        return Some(bytes_of(&lane.counts));
    }
    if number >= TEXTS {
        let interner = *texts(lane).get((number - TEXTS) / 2)?;
        return Some(match number % 2 {
            0 => bytes_of(&interner.arena),
            _ => bytes_of(&interner.ends),
        });
    }
    if number >= TABLES * COLUMNS {
        return None;
    }
    let table = &lane.tables[number / COLUMNS];
    Some(match number % COLUMNS {
        0 => bytes_of(&table.start),
        1 => bytes_of(&table.duration),
        2 => bytes_of(&table.external),
        3 => bytes_of(&table.first),
        4 => bytes_of(&table.second),
        5 => bytes_of(&table.stream),
        6 => bytes_of(&table.device),
        7 => bytes_of(&table.name),
        8 => bytes_of(&table.thread),
        9 => bytes_of(&table.things),
        10 => bytes_of(&table.collective),
        _ => bytes_of(&table.kind),
    })
}

fn fill(report: &mut [i64], lane: &Lane) {
    let (aside, flags) = (lane.aside.len() as i64, lane.frame_flags.len() as i64);
    let numbers = [aside, flags, lane.pending_rows() as i64, i64::from(lane.needs_text)];
    let counts = texts(lane).map(|interner| interner.len() as i64);
    for (place, number) in report.iter_mut().zip(numbers.iter().chain(&counts)) {
        *place = *number;
    }
}
