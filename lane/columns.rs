//! The columns of a table.

use crate::intern::reserve;
use crate::json::Outcome;

/// Columns that every table has here; those that it does not use stay empty.
#[derive(Default)]
pub struct Table {
    pub start: Vec<i64>,
    pub duration: Vec<i64>,
    pub external: Vec<i64>,
    pub first: Vec<i64>,
    pub second: Vec<i64>,
    pub stream: Vec<i64>,
    pub device: Vec<i32>,
    pub name: Vec<i32>,
    pub thread: Vec<i32>,
    pub things: Vec<i32>,
    pub collective: Vec<i32>,
    pub kind: Vec<i8>,
}

impl Table {
    fn longs(&mut self) -> [&mut Vec<i64>; 6] {
        let Table { start, duration, external, first, second, stream, .. } = self;
        [start, duration, external, first, second, stream]
    }

    fn indices(&mut self) -> [&mut Vec<i32>; 5] {
        let Table { device, name, thread, things, collective, .. } = self;
        [device, name, thread, things, collective]
    }

    /// Make room for `count` more rows.
    pub fn reserve(&mut self, count: usize) -> Outcome<()> {
        self.longs().into_iter().try_for_each(|column| reserve(column, count))?;
        self.indices().into_iter().try_for_each(|column| reserve(column, count))?;
        reserve(&mut self.kind, count)
    }

    pub fn clear(&mut self) {
        self.longs().into_iter().for_each(Vec::clear);
        self.indices().into_iter().for_each(Vec::clear);
        self.kind.clear();
    }
}
