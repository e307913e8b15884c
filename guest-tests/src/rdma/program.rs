//! Programs that come as a server and its client, and how each family of them is told of device and peer.

use std::borrow::Cow;
use std::time::Duration;

use super::device::End;
use super::pair::{Listening, Pair};
use crate::guests::Task;

/// How long one program may take. It is for hangs: the slowest finish in a fraction of it.
const TIMEOUT: Duration = Duration::from_secs(300);
/// TCP port on which perftest and the ping-pong programs meet.
const MEETING_PORT: u16 = 18515;

/// How a program is told of device and peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `-d DEVICE -g GID-INDEX` on both, the peer's address last: ibverbs-utils.
    PingPong,
    /// `-d DEVICE -x GID-INDEX` on both, the peer's address last: perftest.
    Perftest,
    /// As perftest, but over rdma_cm, which picks the device by address.
    PerftestCm,
    /// `-s` at the client with the server's address: rdmacm-utils.
    Cm,
    /// The same with another name for the server.
    CmServer(&'static str),
    /// `-s` or `-c` and the server's address with `-a`: rping.
    Rping,
}

/// A program with its own arguments.
#[derive(Clone, Debug)]
pub struct Program {
    style: Style,
    line: Cow<'static, str>,
}

impl Program {
    /// A program by its name and arguments, and how it is told of device and peer.
    pub fn new(style: Style, line: impl Into<Cow<'static, str>>) -> Self {
        Self { style, line: line.into() }
    }

    /// Both commands, for these two ends.
    pub fn pair(&self, server: &End, client: &End) -> Pair {
        let (serve, call) = self.lines(server, client);
        let listening = match self.style {
            Style::PingPong | Style::Perftest => Listening::Tcp(MEETING_PORT),
            Style::PerftestCm | Style::Cm | Style::CmServer(_) | Style::Rping => Listening::Cm,
        };
        let task = |line: String| Task::shell(line).timeout(TIMEOUT);
        Pair { server: task(serve), client: task(call), listening }
    }

    fn lines(&self, server: &End, client: &End) -> (String, String) {
        let (line, address) = (&self.line, &server.address);
        let on_devices = |flags: &str| {
            let of = |end: &End| format!("{line} -d {} {flags} {}", end.device, end.gid);
            (of(server), format!("{} {address}", of(client)))
        };
        match self.style {
            Style::PingPong => on_devices("-g"),
            // perftest's own time-out of 67 ms is shorter than a round trip of a loaded nested guest.
            Style::Perftest => on_devices("-F -u 18 -x"),
            Style::PerftestCm => (format!("{line} -F -R"), format!("{line} -F -R {address}")),
            Style::Cm => (line.to_string(), format!("{line} -s {address}")),
            Style::CmServer(name) => (name.into(), format!("{line} -s {address}")),
            Style::Rping => (format!("{line} -s -a {address}"), format!("{line} -c -a {address}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(style: Style, line: &'static str) -> (String, String) {
        let end =
            |device: &str, gid, address: &str| End { device: device.into(), gid, address: address.into() };
        Program::new(style, line).lines(&end("r0", 1, "10.0.0.1"), &end("r1", 2, "10.0.0.2"))
    }

    #[test]
    fn each_side_gets_its_own_device_and_the_client_the_servers_address() {
        let (server, client) = lines(Style::PingPong, "ibv_rc_pingpong -c");
        assert_eq!(server, "ibv_rc_pingpong -c -d r0 -g 1");
        assert_eq!(client, "ibv_rc_pingpong -c -d r1 -g 2 10.0.0.1");
    }
}
