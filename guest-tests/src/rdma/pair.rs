//! A server in one guest and its client in another.

use std::time::Duration;

use crate::guests::{Guest, GuestError, Job, Output, Task};

/// How long a server may take to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a server may take to end after its client has.
const GRACE: Duration = Duration::from_secs(120);

/// How it shows that a server may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It has a listening `rdma_cm` identifier.
    Cm,
    /// Anything in the guest listens on TCP or `rdma_cm`.
    Anything,
}

impl Listening {
    /// A line for the guest's shell that returns once it is so.
    pub fn wait(self) -> String {
        // Local address, remote address, state; 0A is LISTEN (Documentation/networking/proc_net_tcp).
        let tcp = |port: &str| format!("grep -q ':{port} [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6");
        let cm = "rdma resource show cm_id | grep -q LISTEN";
        let test = match self {
            Self::Tcp(port) => tcp(&format!("{port:04X}")),
            Self::Cm => cm.to_string(),
            Self::Anything => format!("{} || {cm}", tcp("[0-9A-F]*")),
        };
        format!("until {test}; do sleep 0.1; done")
    }
}

/// How long it may take where the client has failed.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A server, its client, and what tells that the server is there.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The server's command.
    pub server: Task,
    /// The client's command.
    pub client: Task,
    /// When the client may start.
    pub listening: Listening,
}

/// What came of both.
#[derive(Debug)]
pub struct PairOutput {
    /// The server's output.
    pub server: Output,
    /// The client's output.
    pub client: Output,
}

impl PairOutput {
    /// Makes an error of anything but status 0 of both.
    ///
    /// # Errors
    ///
    /// As [`Output::success`]; it has the words of both where both failed, since either may be the cause.
    pub fn success(self) -> Result<Self, GuestError> {
        match (self.client.success(), self.server.success()) {
            (Ok(client), Ok(server)) => Ok(Self { server, client }),
            (Err(client), Err(server)) => Err(GuestError::Both(Box::new(client), Box::new(server))),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        }
    }
}

impl Pair {
    /// Runs both to their ends. A server that fails early ends it at once.
    ///
    /// # Errors
    ///
    /// When one takes too long or a guest goes away. Failure of the programs is in the output.
    pub fn run(self, server: &Guest, client: &Guest) -> Result<PairOutput, GuestError> {
        match self.start(server, client)? {
            Started::Running(pair) => pair.wait(),
            Started::Failed(output) => Ok(output),
        }
    }

    /// Starts both, the client once the server listens.
    ///
    /// # Errors
    ///
    /// As [`Pair::run`].
    pub fn start(self, server: &Guest, client: &Guest) -> Result<Started, GuestError> {
        let mut serving = server.start(self.server);
        let mut listening = server.start(Task::shell(self.listening.wait()).timeout(LISTEN_TIMEOUT));
        while listening.poll()?.is_none() {
            if let Some(output) = serving.poll()? {
                // It failed before anybody called; its client would only add noise.
                return Ok(Started::Failed(PairOutput { client: output.clone(), server: output }));
            }
            listening.pause()?;
        }
        let calling = client.start(self.client);
        Ok(Started::Running(Box::new(RunningPair { serving, calling, called: None })))
    }

    /// Runs both; both have to succeed. Gives the client's output.
    ///
    /// # Errors
    ///
    /// As [`Pair::run`], and when one of them fails.
    pub fn must(self, server: &Guest, client: &Guest) -> Result<PairOutput, GuestError> {
        self.run(server, client)?.success()
    }
}

/// What came of the start of a pair.
pub enum Started {
    /// Both run.
    Running(Box<RunningPair>),
    /// The server has failed by itself.
    Failed(PairOutput),
}

/// A server and its client that run.
pub struct RunningPair {
    serving: Job,
    calling: Job,
    called: Option<Output>,
}

impl RunningPair {
    /// Whether the client still runs.
    ///
    /// # Errors
    ///
    /// When its guest has gone away.
    pub fn is_calling(&mut self) -> Result<bool, GuestError> {
        if self.called.is_none() {
            self.called = self.calling.poll()?;
        }
        Ok(self.called.is_none())
    }

    /// Waits for the ends of both.
    ///
    /// # Errors
    ///
    /// As [`Pair::run`].
    pub fn wait(self) -> Result<PairOutput, GuestError> {
        let Self { mut serving, calling, called } = self;
        let client = called.map_or_else(|| calling.wait(), Ok)?;
        if client.succeeded() {
            serving.limit(GRACE);
            return Ok(PairOutput { server: serving.wait()?, client });
        }
        // Many a server waits for ever when its client has failed, which is then what went wrong.
        serving.limit(LAST_WORDS);
        loop {
            if let Some(server) = serving.poll()? {
                return Ok(PairOutput { server, client });
            }
            if serving.pause().is_err() {
                return Ok(PairOutput { server: serving.kill()?, client });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_line_names_the_port_as_the_kernel_writes_it() {
        assert!(Listening::Tcp(18515).wait().contains("':4853 "));
    }
}
