//! Chunks of a Kineto trace to rows of columns.
//!
//! A chunk is read in two steps. `scan` checks all of it and changes no table, so that the Python lane can read
//! a chunk with anything odd in it instead. `commit` then adds its rows in the Python lane's order.

use crate::columns::Table;
use crate::intern::{reserve, Interner};
use crate::json::{time, whole, Fault, Outcome, Scanner, Span, Time};

/// What becomes of an event, by its category.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// A row of a table.
    Row,
    /// A Python function: a row only if it is a module, the user's, or long.
    Frame,
    /// Counted.
    Count,
    /// Handed back as text: it makes no row of our tables.
    Aside,
    /// Its whole chunk is read by the Python lane.
    Odd,
}

#[derive(Clone, Copy)]
struct Category {
    role: Role,
    group: usize,
}

/// Rows of one table and kind.
struct Group {
    role: Role,
    table: usize,
    kind: i8,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
struct Row {
    start: Time,
    duration: Time,
    external: i64,
    first: i64,
    second: i64,
    stream: i64,
    device: i32,
    frame: i32,
    name: Span,
    // Keys below are joined texts in `Lane::joined`.
    thread: Span,
    things: Span, // the inputs, or how a kernel was launched
    collective: Span,
}

// The tables, in the order of the Python lane.
const OPS: usize = 0;
const CALLS: usize = 1;
const RANGES: usize = 2;
const FRAMES: usize = 3;
const WORK: usize = 4;
pub const TABLES: usize = 6;

// What is known of a Python function, by its name.
const UNKNOWN: u8 = 0;
const USER: u8 = 2;
const MODULE: u8 = 3;

const MOST_CATEGORIES: usize = 256;
const FRAME_MARK: u8 = 0;
const NONE: i64 = -1;

/// Arguments that are used, by their place in `Event::args`.
const ARGS: [&[u8]; ARG_COUNT] = [
    b"External id",
    b"external id",
    b"correlation",
    b"device",
    b"stream",
    b"bytes",
    b"Sequence number",
    b"Fwd thread id",
    b"Python id",
    b"Python parent id",
    b"Input Dims",
    b"Input dims",
    b"Input type",
    b"Concrete Inputs",
    b"Input Strides",
    b"kernel_backend",
    b"est. achieved occupancy %",
    b"blocks per SM",
    b"registers per thread",
    b"shared memory",
    b"block",
    b"Collective name",
    b"In msg nelems",
    b"Out msg nelems",
    b"dtype",
    b"Group size",
    b"Process Group Name",
    b"Process Group Ranks",
    b"Src Rank",
    b"Dst Rank",
];
const EXTERNAL: usize = 0;
const EXTERNAL_OLD: usize = 1;
const CORRELATION: usize = 2;
const DEVICE: usize = 3;
const STREAM: usize = 4;
const BYTES: usize = 5;
const SEQUENCE: usize = 6;
const FORWARD_THREAD: usize = 7;
const PYTHON_ID: usize = 8;
const PYTHON_PARENT: usize = 9;
const INPUTS: std::ops::Range<usize> = 10..16;
const LAUNCH: std::ops::Range<usize> = 16..21;
const COLLECTIVE: std::ops::Range<usize> = 21..30;
const ARG_COUNT: usize = 30;
const LONGEST_ARG: usize = 25;

#[derive(Default)]
struct Event {
    phase: Span,
    category: Span,
    name: Span,
    process: Span,
    thread: Span,
    start: Span,
    duration: Span,
    args: [Span; ARG_COUNT],
}

/// Times that the Python lane cannot convert: in nanoseconds from here on, or in microseconds from there on.
#[derive(Clone, Copy)]
pub struct Limits {
    pub long_frame_ns: i64,
    pub time_us: i64,
    pub exact_ns: i64,
}

pub struct Lane {
    limits: Limits,
    places: Places,
    categories: Vec<Category>,
    groups: Vec<Group>,
    module_kind: i8,
    joined: Vec<u8>,
    /// Events that are handed back, as a JSON array.
    pub aside: Vec<u8>,
    pub tables: [Table; TABLES],
    pub names: Interner,
    pub threads: Interner,
    pub inputs: Interner,
    pub launches: Interner,
    pub collectives: Interner,
    pub category_names: Interner,
    pub frames: Interner,
    /// For each frame what is known of it.
    pub frame_flags: Vec<u8>,
    /// Events of each category, in the chunk that was read last.
    pub counts: Vec<i64>,
    /// Whether the times of that chunk have to be read as text where numbers are doubles.
    pub needs_text: bool,
}

impl Lane {
    /// Each line of `setup` is a role, a table, a kind and a category, in the order of the rows; the kind of
    /// frames is that of modules.
    pub fn new(setup: &[u8], limits: Limits) -> Outcome<Self> {
        let mut lane = Lane {
            limits,
            places: Places::new(),
            categories: Vec::new(),
            groups: Vec::new(),
            module_kind: 0,
            joined: Vec::new(),
            aside: Vec::new(),
            tables: Default::default(),
            names: Interner::new(),
            threads: Interner::new(),
            inputs: Interner::new(),
            launches: Interner::new(),
            collectives: Interner::new(),
            category_names: Interner::new(),
            frames: Interner::new(),
            frame_flags: Vec::new(),
            counts: Vec::new(),
            needs_text: false,
        };
        for line in std::str::from_utf8(setup).map_err(|_| Fault::Odd)?.lines() {
            let mut words = line.splitn(4, ' ');
            let role = match words.next() {
                Some("row") => Role::Row,
                Some("frame") => Role::Frame,
                Some("count") => Role::Count,
                Some("aside") => Role::Aside,
                _ => Role::Odd,
            };
            let table = words.next().and_then(|word| word.parse().ok()).unwrap_or(TABLES);
            let kind = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            let name = words.next().ok_or(Fault::Odd)?;
            if table >= TABLES && (role == Role::Row || role == Role::Frame) {
                return Err(Fault::Odd);
            }
            if role == Role::Frame {
                lane.module_kind = kind;
            }
            let category = Category { role, group: lane.groups.len() };
            if role == Role::Row || role == Role::Frame {
                lane.groups.push(Group { role, table, kind, rows: Vec::new() });
            }
            if lane.category_names.number(name.as_bytes())? as usize != lane.categories.len() {
                return Err(Fault::Odd); // named twice
            }
            lane.categories.push(category);
            lane.counts.push(0);
        }
        Ok(lane)
    }

    pub fn pending_rows(&self) -> usize {
        self.tables.iter().map(|table| table.start.len()).sum()
    }

    /// Check a JSON array of events and sort its rows by group.
    pub fn scan(&mut self, text: &[u8]) -> Outcome<()> {
        for group in &mut self.groups {
            group.rows.clear();
        }
        self.counts.iter_mut().for_each(|count| *count = 0);
        self.joined.clear();
        self.aside.clear();
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::Odd);
        }
        let mut scanner = Scanner::new(text);
        scanner.take(b'[')?;
        if !scanner.take_if(b']') {
            loop {
                scanner.skip_blanks();
                let start = scanner.offset();
                let event = event(&mut scanner, &self.places)?;
                self.sort(text, &event, Span { start, end: scanner.offset() })?;
                if !scanner.has_next(b']')? {
                    break;
                }
            }
        }
        scanner.skip_blanks();
        if !scanner.is_at_end() {
            return Err(Fault::Odd);
        }
        if !self.aside.is_empty() {
            reserve(&mut self.aside, 1)?;
            self.aside.push(b']');
        }
        Ok(())
    }

    /// Add an event to its group.
    fn sort(&mut self, text: &[u8], event: &Event, whole_event: Span) -> Outcome<()> {
        let name = unquoted(event.category, text);
        if name.contains(&b'\\') {
            return Err(Fault::Odd);
        }
        let number = self.category_names.number(name)? as usize;
        if number >= self.categories.len() {
            if number >= MOST_CATEGORIES {
                return Err(Fault::Odd);
            }
            self.categories.push(Category { role: Role::Count, group: 0 });
            self.counts.push(0);
        }
        let category = self.categories[number];
        let phase = unquoted(event.phase, text);
        let role = match (name, phase) {
            (b"", b"X") => Role::Odd,
            (b"", b"M" | b"i" | b"I") => Role::Aside,
            _ if phase.contains(&b'\\') => Role::Odd,
            _ => category.role,
        };
        match role {
            Role::Odd => Err(Fault::Odd),
            Role::Aside => {
                let event = whole_event.of(text);
                reserve(&mut self.aside, event.len() + 2)?; // with what stands before it, and the end
                self.aside.push(if self.aside.is_empty() { b'[' } else { b',' });
                self.aside.extend_from_slice(event);
                Ok(())
            }
            Role::Count => {
                self.counts[number] += 1;
                Ok(())
            }
            Role::Row | Role::Frame => {
                if phase != b"X" {
                    return Err(Fault::Odd);
                }
                let row = self.row(text, event, category.group)?;
                let rows = &mut self.groups[category.group].rows;
                reserve(rows, 1)?;
                rows.push(row);
                self.counts[number] += 1;
                Ok(())
            }
        }
    }

    fn row(&mut self, text: &[u8], event: &Event, group: usize) -> Outcome<Row> {
        let Group { role, table, .. } = self.groups[group];
        let arg = |number: usize| match event.args[number] {
            span if span.is_empty() => Ok(NONE),
            span => whole(span.of(text)),
        };
        let or_else = |value: i64, spare: Span| match value {
            NONE if !spare.is_empty() => whole(spare.of(text)),
            _ => Ok(value),
        };
        let duration = time(event.duration.of(text), self.limits.time_us)?;
        if duration.ns < 0 {
            return Err(Fault::Odd);
        }
        let mut row = Row {
            start: time(event.start.of(text), self.limits.time_us)?,
            duration,
            external: or_else(arg(EXTERNAL)?, event.args[EXTERNAL_OLD])?,
            first: NONE,
            second: NONE,
            stream: NONE,
            device: -1,
            frame: -1,
            name: event.name,
            thread: Span::default(),
            things: Span::default(),
            collective: Span::default(),
        };
        (row.first, row.second) = match table {
            OPS => (arg(SEQUENCE)?, arg(FORWARD_THREAD)?),
            CALLS => (arg(CORRELATION)?, NONE),
            RANGES | FRAMES => (arg(PYTHON_ID)?, arg(PYTHON_PARENT)?),
            WORK => (arg(CORRELATION)?, arg(BYTES)?),
            _ => (NONE, NONE),
        };
        if table >= WORK {
            let device = or_else(arg(DEVICE)?, event.process)?;
            row.device = i32::try_from(device).unwrap_or(-1);
            row.stream = or_else(arg(STREAM)?, event.thread)?;
        } else {
            // Floats would be equal to whole numbers that look different.
            for id in [event.process.of(text), event.thread.of(text)] {
                let is_text = id.first() == Some(&b'"');
                if !is_text && !id.iter().all(|byte| matches!(byte, b'-' | b'0'..=b'9')) {
                    return Err(Fault::Odd);
                }
            }
            row.thread = self.join(text, &[event.process, event.thread])?;
        }
        if matches!(table, OPS | RANGES | FRAMES) {
            row.things = self.join(text, &event.args[INPUTS])?; // a module among the frames is a range
        }
        if table == WORK {
            row.things = self.join(text, &event.args[LAUNCH])?;
            if !matches!(event.args[COLLECTIVE.start].of(text), b"" | b"null") {
                row.collective = self.join(text, &event.args[COLLECTIVE])?;
            }
        }
        if role == Role::Frame {
            row.frame = self.frames.number(unquoted(event.name, text))?;
            let missing = self.frames.len() - self.frame_flags.len();
            reserve(&mut self.frame_flags, missing)?;
            self.frame_flags.resize(self.frames.len(), UNKNOWN);
        }
        Ok(row)
    }

    /// Join texts by NUL, which cannot occur in JSON; return where the result is among the joined ones.
    fn join(&mut self, text: &[u8], parts: &[Span]) -> Outcome<Span> {
        let start = self.joined.len();
        let size: usize = parts.iter().map(|part| part.of(text).len() + 1).sum();
        reserve(&mut self.joined, size)?;
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.joined.push(0);
            }
            self.joined.extend_from_slice(part.of(text));
        }
        let end = u32::try_from(self.joined.len()).map_err(|_| Fault::Odd)?;
        Ok(Span { start: start as u32, end })
    }

    /// Add the rows of the chunk that was scanned last; all its frames are known by now.
    pub fn commit(&mut self, text: &[u8]) -> Outcome<()> {
        let Limits { long_frame_ns, exact_ns, .. } = self.limits;
        let (mut starts, mut durations) = (Times::default(), Times::default());
        let mut groups = std::mem::take(&mut self.groups);
        for group in &mut groups {
            if group.role == Role::Frame {
                self.tables[RANGES].reserve(group.rows.len())?;
            }
            self.tables[group.table].reserve(group.rows.len())?;
        }
        for group in &groups {
            // Modules are ranges, which come before the frames.
            let passes = [(RANGES, self.module_kind, true), (group.table, group.kind, false)];
            let is_frames = group.role == Role::Frame;
            for &(table, kind, of_modules) in passes.iter().skip(usize::from(!is_frames)) {
                for row in &group.rows {
                    if is_frames {
                        let flag = self.frame_flags.get(row.frame as usize).copied().unwrap_or(UNKNOWN);
                        let is_kept = match flag {
                            MODULE => of_modules,
                            USER => !of_modules,
                            _ => !of_modules && row.duration.ns >= long_frame_ns,
                        };
                        if !is_kept {
                            continue;
                        }
                    }
                    self.add(text, row, table, kind)?;
                    starts.see(row.start);
                    durations.see(row.duration);
                }
            }
        }
        self.groups = groups;
        self.needs_text = starts.need_text(exact_ns) || durations.need_text(exact_ns);
        Ok(())
    }

    fn add(&mut self, text: &[u8], row: &Row, number: usize, kind: i8) -> Outcome<()> {
        let name = unquoted(row.name, text);
        let name = if number == FRAMES {
            let mut marked = Vec::new();
            reserve(&mut marked, name.len() + 1)?;
            marked.push(FRAME_MARK);
            marked.extend_from_slice(name);
            self.names.number(&marked)?
        } else {
            self.names.number(name)?
        };
        let table = &mut self.tables[number];
        table.start.push(row.start.ns);
        table.duration.push(row.duration.ns);
        table.external.push(row.external);
        table.name.push(name);
        table.kind.push(kind);
        if number < WORK {
            table.thread.push(self.threads.number(row.thread.of(&self.joined))?);
        } else {
            table.device.push(row.device);
            table.stream.push(row.stream);
        }
        if number <= RANGES || number == WORK {
            table.first.push(row.first);
            table.second.push(row.second);
        }
        let things = row.things.of(&self.joined);
        match number {
            OPS | RANGES => table.things.push(self.inputs.number(things)?),
            WORK => {
                table.things.push(self.launches.number(things)?);
                let collective = row.collective.of(&self.joined);
                table.collective.push(if collective.is_empty() {
                    -1
                } else {
                    self.collectives.number(collective)?
                });
            }
            _ => {}
        }
        Ok(())
    }
}

/// The times of a column, as far as they decide whether doubles resolve nanoseconds.
#[derive(Default)]
struct Times {
    any_float: bool,
    largest_ns: i64,
}

impl Times {
    fn see(&mut self, time: Time) {
        self.any_float |= time.is_float;
        self.largest_ns = self.largest_ns.max(time.ns.abs());
    }

    fn need_text(&self, exact_ns: i64) -> bool {
        self.any_float && self.largest_ns >= exact_ns
    }
}

/// Return a string without its quotes.
fn unquoted(value: Span, text: &[u8]) -> &[u8] {
    match value.of(text) {
        [b'"', inner @ .., b'"'] => inner,
        _ => b"",
    }
}

/// Read one event; of a key that comes twice the last value counts.
fn event(scanner: &mut Scanner, places: &Places) -> Outcome<Event> {
    let mut event = Event::default();
    let mut has_args = false;
    scanner.take(b'{')?;
    if scanner.take_if(b'}') {
        return Ok(event);
    }
    loop {
        match scanner.key()? {
            b"ph" => event.phase = scanner.text_value()?,
            b"cat" => event.category = scanner.text_value()?,
            b"name" => event.name = scanner.text_value()?,
            b"pid" => event.process = scanner.value()?,
            b"tid" => event.thread = scanner.value()?,
            b"ts" => event.start = scanner.value()?,
            b"dur" => event.duration = scanner.value()?,
            b"args" if has_args => return Err(Fault::Odd),
            b"args" => {
                has_args = true;
                read_args(scanner, places, &mut event.args)?;
            }
            _ => {
                scanner.value()?;
            }
        }
        if !scanner.has_next(b'}')? {
            return Ok(event);
        }
    }
}

fn read_args(scanner: &mut Scanner, places: &Places, args: &mut [Span; ARG_COUNT]) -> Outcome<()> {
    scanner.take(b'{')?;
    if scanner.take_if(b'}') {
        return Ok(());
    }
    loop {
        let key = scanner.key()?;
        if matches!(key, b"rank" | b"Task Type") {
            return Err(Fault::Odd); // of a merged file, or of an NPU
        }
        let value = scanner.value()?;
        if let Some(number) = places.find(key) {
            args[number] = value;
        }
        if !scanner.has_next(b'}')? {
            return Ok(());
        }
    }
}

/// The places of arguments by the length of their names, most of which differ in it.
struct Places {
    by_length: [Vec<u8>; LONGEST_ARG + 1],
}

impl Places {
    fn new() -> Self {
        let mut by_length: [Vec<u8>; LONGEST_ARG + 1] = Default::default();
        for (place, name) in ARGS.iter().enumerate() {
            by_length[name.len()].push(place as u8);
        }
        Places { by_length }
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        let places = self.by_length.get(key.len())?;
        places.iter().map(|place| usize::from(*place)).find(|place| ARGS[*place] == key)
    }
}
