//! The ports of a bare-metal guest.

use std::time::Duration;

use bare_abi::{PORT_EXIT, PORT_HALT, PORT_SLEEP};

/// Longest sleep asked for at once; a thread that sleeps longer could not be stopped in time.
const MAX_SLEEP: Duration = Duration::from_millis(10);

/// What a CPU of a bare-metal guest asks for by a port write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) enum Request {
    /// Wait for the next interrupt.
    Halt,
    /// Rest; not at all means to let others run.
    Sleep(Duration),
    /// End the machine with this status.
    Exit(u32),
}

/// Recognises requests; absent in machines that start a kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct BarePorts;

impl BarePorts {
    /// The request in a port write, if it is one.
    pub(in crate::machine) fn parse(self, port: u16, data: &[u8]) -> Option<Request> {
        let value = || Some(u32::from_le_bytes(data.try_into().ok()?));
        match port {
            PORT_HALT => Some(Request::Halt),
            PORT_SLEEP => Some(Request::Sleep(Duration::from_micros(value()?.into()).min(MAX_SLEEP))),
            PORT_EXIT => Some(Request::Exit(value()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_documented_width() {
        let parse = |port, data: &[u8]| BarePorts.parse(port, data);
        assert_eq!(parse(PORT_HALT, &[0]), Some(Request::Halt));
        assert_eq!(parse(PORT_SLEEP, &[100, 0, 0, 0]), Some(Request::Sleep(Duration::from_micros(100))));
        assert_eq!(parse(PORT_SLEEP, &[0xff; 4]), Some(Request::Sleep(MAX_SLEEP)));
        assert_eq!(parse(PORT_EXIT, &[3, 0, 0, 0]), Some(Request::Exit(3)));
        assert_eq!(parse(PORT_EXIT, &[3]), None);
        assert_eq!(parse(0x3f8, &[0; 4]), None);
    }
}
