//! Numbers for texts, in the order in which they are first met.

use crate::json::{Fault, Outcome};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

pub struct Interner {
    seed: u64,
    /// For each slot the upper half of a text's hash, and its number plus one; 0 is free.
    slots: Vec<u64>,
    pub arena: Vec<u8>,
    /// Where each text ends in the arena.
    pub ends: Vec<u64>,
}

const FIRST_SLOTS: usize = 256;
const UPPER: u64 = 0xffff_ffff_0000_0000;
const MOST_TEXTS: usize = i32::MAX as usize;

impl Interner {
    pub fn new() -> Self {
        // Not known to whoever wrote the file, who could make texts collide otherwise.
        let seed = RandomState::new().build_hasher().finish();
        Interner { seed, slots: Vec::new(), arena: Vec::new(), ends: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Return the number of a text, which is a new one for a new text.
    pub fn number(&mut self, text: &[u8]) -> Outcome<i32> {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow()?;
        }
        let hash = hash(text, self.seed);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                break;
            }
            let number = (entry & !UPPER) as usize - 1;
            if entry & UPPER == hash & UPPER && self.text(number) == text {
                return Ok(number as i32);
            }
            slot = (slot + 1) & mask;
        }
        let number = self.ends.len();
        if number >= MOST_TEXTS {
            return Err(Fault::NoMemory);
        }
        reserve(&mut self.arena, text.len())?;
        reserve(&mut self.ends, 1)?;
        self.arena.extend_from_slice(text);
        self.ends.push(self.arena.len() as u64);
        self.slots[slot] = hash & UPPER | (number as u64 + 1);
        Ok(number as i32)
    }

    fn text(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.arena[start as usize..self.ends[number] as usize]
    }

    fn grow(&mut self) -> Outcome<()> {
        let size = FIRST_SLOTS.max(self.slots.len() * 2);
        let mut slots: Vec<u64> = Vec::new();
        reserve(&mut slots, size)?;
        slots.resize(size, 0);
        for number in 0..self.ends.len() {
            let hash = hash(self.text(number), self.seed);
            let mut slot = hash as usize & (size - 1);
            while slots[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            slots[slot] = hash & UPPER | (number as u64 + 1);
        }
        self.slots = slots;
        Ok(())
    }
}

/// Make room for `count` more, or say that there is no memory: Vec alone would end the process.
pub fn reserve<T>(items: &mut Vec<T>, count: usize) -> Outcome<()> {
    items.try_reserve(count).map_err(|_| Fault::NoMemory)
}

fn word(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(eight)
}

fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

fn hash(text: &[u8], seed: u64) -> u64 {
    let mut state = seed ^ text.len() as u64;
    let mut pairs = text.chunks_exact(16);
    for pair in &mut pairs {
        state = mix(word(&pair[..8]) ^ seed, word(&pair[8..]) ^ state);
    }
    let rest = pairs.remainder();
    let (left, right) = rest.split_at(rest.len().min(8));
    state = mix(word(left) ^ seed, word(right) ^ state);
    mix(state, seed ^ 0xa076_1d64_78bd_642f)
}
