//! Keys that are for the monitor and not for the guest: Ctrl-A, then a letter.

/// Ctrl-A.
const ESCAPE: u8 = 1;

/// Shown for Ctrl-A h.
pub const HELP: &str = "\r\n\
    Ctrl-A x       end the machine\r\n\
    Ctrl-A Ctrl-A  send Ctrl-A to the guest\r\n\
    Ctrl-A h       this text\r\n";

/// What a key asks the monitor for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End the machine.
    Exit,
    /// List the keys.
    Help,
}

/// Takes the monitor's keys out of terminal input.
#[derive(Debug, Default)]
pub struct EscapeFilter {
    escaped: bool,
}

impl EscapeFilter {
    /// Passes input for the guest to `guest` and returns what the monitor is asked for.
    pub fn filter(&mut self, input: &[u8], mut guest: impl FnMut(u8)) -> Vec<Action> {
        let mut actions = Vec::new();
        for byte in input {
            match (std::mem::take(&mut self.escaped), byte) {
                (false, &ESCAPE) => self.escaped = true,
                (false, _) | (true, &ESCAPE) => guest(*byte),
                (true, b'x' | b'X') => actions.push(Action::Exit),
                (true, b'h' | b'H' | b'?') => actions.push(Action::Help),
                (true, _) => {}
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(inputs: &[&[u8]]) -> (Vec<u8>, Vec<Action>) {
        let (mut filter, mut guest) = (EscapeFilter::default(), Vec::new());
        let actions = inputs.iter().flat_map(|input| filter.filter(input, |byte| guest.push(byte))).collect();
        (guest, actions)
    }

    #[test]
    fn escape_keys_are_taken_out_even_across_reads() {
        assert_eq!(run(&[b"a\x01xb"]), (b"ab".to_vec(), vec![Action::Exit]));
        assert_eq!(run(&[b"a\x01", b"h"]), (b"a".to_vec(), vec![Action::Help]));
        assert_eq!(run(&[b"\x01\x01x"]), (b"\x01x".to_vec(), vec![]));
        assert_eq!(run(&[b"\x01qz"]), (b"z".to_vec(), vec![]));
    }
}
