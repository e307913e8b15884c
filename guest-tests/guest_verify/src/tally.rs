//! Counts what was checked, and remembers the first things that were wrong.

use std::fmt;

use crate::plan::Operation;
use guest_pattern::{Origin, first_difference};

/// How many wrong messages are described.
const DESCRIBED: u64 = 5;

/// What one side has checked.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    operation: Operation,
    messages: u64,
    bytes: u64,
    errors: u64,
}

impl Tally {
    /// Nothing yet.
    pub fn new(operation: Operation) -> Self {
        Self { operation, messages: 0, bytes: 0, errors: 0 }
    }

    /// Checks the content of a message.
    pub fn check(&mut self, origin: Origin, sequence: u64, bytes: &[u8]) {
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        if let Some(at) = first_difference(origin, sequence, bytes) {
            self.wrong(&format!("Message {sequence} is wrong from byte {at} of {}", bytes.len()));
        }
    }

    /// Checks a number; a run of atomics counts each as a message of eight bytes.
    pub fn expect(&mut self, what: &str, got: u64, wanted: u64) {
        if got != wanted {
            self.wrong(&format!("{what} is {got:#x}, not {wanted:#x}"));
        }
    }

    /// Counts an atomic that has answered.
    pub fn answered(&mut self) {
        self.messages += 1;
        self.bytes += 8;
    }

    /// Whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }

    fn wrong(&mut self, text: &str) {
        self.errors += 1;
        if self.errors <= DESCRIBED {
            println!("WRONG op={}: {text}", self.operation);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, messages, bytes, errors } = self;
        write!(f, "VERIFY op={operation} messages={messages} bytes={bytes} errors={errors}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_pattern::fill;

    #[test]
    fn wrong_content_is_counted() {
        let mut tally = Tally::new(Operation::Write);
        let mut bytes = [0; 100];
        fill(Origin::SERVER, 4, &mut bytes);
        tally.check(Origin::SERVER, 4, &bytes);
        assert!(tally.is_clean());
        tally.check(Origin::SERVER, 5, &bytes);
        assert_eq!(tally.to_string(), "VERIFY op=write messages=2 bytes=200 errors=1");
    }
}
