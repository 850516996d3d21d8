//! A strict scanner for JSON text: it accepts less than the Python decoder does, never more.

/// Why the text cannot be read here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The Python lane has to read it.
    Odd,
    NoMemory,
}

pub type Outcome<T> = Result<T, Fault>;

/// A part of the text. Values are never empty, so an empty span means that there is none.
#[derive(Clone, Copy, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or(b"")
    }
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
const MOST_DEPTH: u32 = 64;
const MOST_DIGITS: usize = 40;
const MOST_EXPONENT_DIGITS: usize = 2;

pub struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// Whether the string that was read last has escapes.
    is_escaped: bool,
}

impl<'a> Scanner<'a> {
    /// The text must be shorter than 4 GiB.
    pub fn new(text: &'a [u8]) -> Self {
        Scanner { text, at: 0, is_escaped: false }
    }

    pub fn offset(&self) -> u32 {
        self.at as u32
    }

    pub fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    fn here(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    pub fn skip_blanks(&mut self) {
        while matches!(self.here(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Skip blanks and one byte, which must be `byte`.
    #[inline]
    pub fn take(&mut self, byte: u8) -> Outcome<()> {
        if self.take_if(byte) {
            Ok(())
        } else {
            Err(Fault::Odd)
        }
    }

    /// Skip blanks, and one byte if it is `byte`.
    #[inline]
    pub fn take_if(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let found = self.here() == byte;
        self.at += usize::from(found);
        found
    }

    /// After a member of an object: whether another one follows.
    #[inline]
    pub fn has_next(&mut self, close: u8) -> Outcome<bool> {
        if self.take_if(b',') {
            return Ok(true);
        }
        self.take(close).map(|()| false)
    }

    /// Read a key and its colon. Keys with escapes are odd, since they may name anything.
    #[inline]
    pub fn key(&mut self) -> Outcome<&'a [u8]> {
        let span = self.text_value()?;
        let key = &self.text[span.start as usize + 1..span.end as usize - 1];
        if self.is_escaped {
            return Err(Fault::Odd);
        }
        self.take(b':')?;
        Ok(key)
    }

    /// Read a string with its quotes.
    #[inline]
    pub fn text_value(&mut self) -> Outcome<Span> {
        self.skip_blanks();
        if self.here() != b'"' {
            return Err(Fault::Odd);
        }
        let start = self.at;
        self.string()?;
        Ok(self.span_from(start))
    }

    /// Read any value.
    #[inline]
    pub fn value(&mut self) -> Outcome<Span> {
        self.skip_blanks();
        let start = self.at;
        self.skip(MOST_DEPTH)?;
        Ok(self.span_from(start))
    }

    fn span_from(&self, start: usize) -> Span {
        Span { start: start as u32, end: self.at as u32 }
    }

    fn skip(&mut self, depth: u32) -> Outcome<()> {
        match self.here() {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b'[' => self.skip_members(depth, b']'),
            b'{' => self.skip_members(depth, b'}'),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => Err(Fault::Odd),
        }
    }

    fn skip_members(&mut self, depth: u32, close: u8) -> Outcome<()> {
        if depth == 0 {
            return Err(Fault::Odd);
        }
        self.at += 1;
        if self.take_if(close) {
            return Ok(());
        }
        loop {
            self.skip_blanks();
            if close == b'}' {
                if self.here() != b'"' {
                    return Err(Fault::Odd);
                }
                self.string()?;
                self.take(b':')?;
                self.skip_blanks();
            }
            self.skip(depth - 1)?;
            if !self.has_next(close)? {
                return Ok(());
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Outcome<()> {
        let end = self.at + word.len();
        if self.text.get(self.at..end) != Some(word) {
            return Err(Fault::Odd);
        }
        self.at = end;
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.here().is_ascii_digit() {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Outcome<()> {
        self.at += usize::from(self.here() == b'-');
        let starts_with_zero = self.here() == b'0';
        let count = self.digits();
        if count == 0 || count > MOST_DIGITS || (starts_with_zero && count > 1) {
            return Err(Fault::Odd);
        }
        if self.here() == b'.' {
            self.at += 1;
            if !(1..=MOST_DIGITS).contains(&self.digits()) {
                return Err(Fault::Odd);
            }
        }
        if matches!(self.here(), b'e' | b'E') {
            self.at += 1;
            self.at += usize::from(matches!(self.here(), b'+' | b'-'));
            if !(1..=MOST_EXPONENT_DIGITS).contains(&self.digits()) {
                return Err(Fault::Odd);
            }
        }
        Ok(())
    }

    /// Read a string from its opening quote, eight bytes at a time.
    fn string(&mut self) -> Outcome<()> {
        let start = self.at + 1;
        let mut at = start;
        let mut above_ascii = 0;
        self.is_escaped = false;
        loop {
            while let Some(bytes) = self.text.get(at..at + 8) {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                let word = u64::from_le_bytes(eight);
                above_ascii |= word & HIGH;
                let quote = word ^ (LOW * b'"' as u64);
                let backslash = word ^ (LOW * b'\\' as u64);
                // A byte's high bit is set if it is zero, or below 0x20; above the first such byte it may be
                // set by mistake.
                let stops = (quote.wrapping_sub(LOW) & !quote
                    | backslash.wrapping_sub(LOW) & !backslash
                    | word.wrapping_sub(LOW * 0x20) & !word)
                    & HIGH;
                if stops != 0 {
                    at += stops.trailing_zeros() as usize / 8;
                    break;
                }
                at += 8;
            }
            match self.text.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    self.is_escaped = true;
                    at = self.escape(at)?;
                }
                None | Some(0..=0x1f) => return Err(Fault::Odd),
                Some(byte) => {
                    above_ascii |= u64::from(*byte) & HIGH;
                    at += 1;
                }
            }
        }
        if above_ascii != 0 && std::str::from_utf8(&self.text[start..at]).is_err() {
            return Err(Fault::Odd);
        }
        self.at = at + 1;
        Ok(())
    }

    /// Return where the text continues after an escape. Surrogates are odd.
    fn escape(&self, at: usize) -> Outcome<usize> {
        match self.text.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => match self.text.get(at + 2..at + 6) {
                Some([b'd' | b'D', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F', _, _]) => Err(Fault::Odd),
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(at + 6),
                _ => Err(Fault::Odd),
            },
            _ => Err(Fault::Odd),
        }
    }
}

/// Return an id as the Python lane does: above 2**63 it wraps around, null counts as missing (-1).
pub fn whole(text: &[u8]) -> Outcome<i64> {
    if text == b"null" {
        return Ok(-1);
    }
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 20 {
        return Err(Fault::Odd);
    }
    let mut size: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(Fault::Odd);
        }
        let next = size.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
        size = next.ok_or(Fault::Odd)?;
    }
    if !negative {
        return Ok(size as i64);
    }
    if size >= 1 << 63 {
        return Err(Fault::Odd);
    }
    Ok(-(size as i64))
}

/// A time in nanoseconds, and whether the text is that of a float.
#[derive(Clone, Copy, Default)]
pub struct Time {
    pub ns: i64,
    pub is_float: bool,
}

/// Read microseconds with at most three decimals, below `limit_us`.
pub fn time(text: &[u8], limit_us: i64) -> Outcome<Time> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    let mut us: i64 = 0;
    let mut count = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            break;
        }
        us = us.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
        count += 1;
    }
    if count == 0 || count > 18 || us >= limit_us {
        return Err(Fault::Odd);
    }
    let mut ns = 0;
    let is_float = match &digits[count..] {
        [] => false,
        [b'.', decimals @ ..] if (1..=3).contains(&decimals.len()) => {
            for place in 0..3 {
                let digit = decimals.get(place).copied().unwrap_or(b'0');
                if !digit.is_ascii_digit() {
                    return Err(Fault::Odd);
                }
                ns = ns * 10 + i64::from(digit - b'0');
            }
            true
        }
        _ => return Err(Fault::Odd),
    };
    let size = us.checked_mul(1000).ok_or(Fault::Odd)? + ns;
    Ok(Time { ns: if negative { -size } else { size }, is_float })
}
