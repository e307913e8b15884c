//! The asking end.

use std::io::{self, BufRead, BufReader, ErrorKind as IoKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{
    Answer, ApiError, MAX_REPLY, Migrate, MigrationStatus, Outcome, RdmaReport, RdmaShow, Reply, Request,
    Resolve, Side, Snapshot, VERSION, VmInfo,
};

/// How long a monitor may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take to save a machine.
const SAVING: Duration = Duration::from_secs(3600);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket, or nobody behind it.
    #[error("No machine listens at {}: start one with `verbena run … --api-socket {}`", .0.display(), .0.display())]
    Absent(PathBuf),
    /// It belongs to somebody else.
    #[error("No permission to use {}: a machine answers only the user who started it", .0.display())]
    Permission(PathBuf),
    /// Nothing came in time.
    #[error("The machine at {} does not answer: is it stopped, or another program?", .0.display())]
    Silent(PathBuf),
    /// What came is no reply of this protocol.
    #[error("What answers at {} is no machine of this version: {reason}", path.display())]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The machine said no.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The operating system did.
    #[error("Cannot talk to the machine at {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// A connection to a machine.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    last_id: u64,
}

impl Client {
    /// Connects to the machine that listens at `path`.
    ///
    /// # Errors
    ///
    /// When nobody listens there, or only for somebody else.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let explain = |source: io::Error| match source.kind() {
            IoKind::NotFound | IoKind::ConnectionRefused => ClientError::Absent(path.into()),
            IoKind::PermissionDenied => ClientError::Permission(path.into()),
            _ => ClientError::Io { path: path.into(), source },
        };
        let stream = UnixStream::connect(path).map_err(explain)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(explain)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(explain)?;
        Ok(Self { path: path.into(), stream: BufReader::new(stream), last_id: 0 })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] when the machine refuses, others when there is no answer.
    pub fn call(&mut self, request: &Request) -> Result<Answer, ClientError> {
        self.last_id += 1;
        let line = request.encode(self.last_id);
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|e| self.io(e))?;
        let reply = self.read_reply()?;
        if reply.version != VERSION || reply.id != self.last_id {
            let reason = format!("version {}, reply to request {}", reply.version, reply.id);
            return Err(self.foreign(reason));
        }
        match reply.outcome {
            Outcome::Ok(answer) => Ok(answer),
            Outcome::Error(error) => Err(error.into()),
        }
    }

    /// What the machine is made of.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn vm_info(&mut self) -> Result<VmInfo, ClientError> {
        match self.call(&Request::VmInfo {})? {
            Answer::VmInfo(info) => Ok(info),
            other => Err(self.foreign(format!("{other:?} is no answer to vm.info"))),
        }
    }

    /// The RDMA device of a slot, or all, with all their queue pairs.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn rdma_show(&mut self, slot: Option<&str>) -> Result<RdmaReport, ClientError> {
        let mut report = self.rdma_page(slot, 0)?;
        for device in &mut report.devices {
            while let Some(first) = device.more_from {
                let mut page = self.rdma_page(Some(&device.slot), first)?;
                let Some(next) = page.devices.pop() else { break };
                // Handles ascend, so that no server can keep a client in this loop.
                if next.more_from.is_some_and(|more| more <= first) {
                    return Err(self.foreign("its list of queue pairs has no end".into()));
                }
                device.queue_pairs.extend(next.queue_pairs);
                device.more_from = next.more_from;
            }
        }
        Ok(report)
    }

    /// Pauses the machine.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn pause(&mut self) -> Result<(), ClientError> {
        self.call(&Request::Pause {}).map(drop)
    }

    /// Lets a paused machine go on.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn resume(&mut self) -> Result<(), ClientError> {
        self.call(&Request::Resume {}).map(drop)
    }

    /// Saves the machine in the directory `to`, an absolute path, and ends it if `stop` is set.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn snapshot(&mut self, to: &Path, stop: bool) -> Result<(), ClientError> {
        self.stream.get_ref().set_read_timeout(Some(SAVING)).map_err(|e| self.io(e))?;
        let answer = self.call(&Request::Snapshot(Snapshot { to: to.to_owned(), stop }));
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).map_err(|e| self.io(e))?;
        answer.map(drop)
    }

    /// Begins to move the machine.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn migrate(&mut self, how: Migrate) -> Result<(), ClientError> {
        self.call(&Request::Migrate(how)).map(drop)
    }

    /// How moving it is going, or went the last time.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn migration_status(&mut self) -> Result<MigrationStatus, ClientError> {
        match self.call(&Request::MigrationStatus {})? {
            Answer::MigrationStatus(status) => Ok(status),
            other => Err(self.foreign(format!("{other:?} is no answer to vm.migrate.status"))),
        }
    }

    /// Gives moving it up.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn cancel_migration(&mut self) -> Result<(), ClientError> {
        self.call(&Request::MigrateCancel {}).map(drop)
    }

    /// Says which end is to have the machine, if the two cannot decide.
    ///
    /// # Errors
    ///
    /// As [`Client::call`].
    pub fn resolve_migration(&mut self, side: Side) -> Result<(), ClientError> {
        self.call(&Request::MigrateResolve(Resolve { side })).map(drop)
    }

    fn rdma_page(&mut self, slot: Option<&str>, first_qp: u32) -> Result<RdmaReport, ClientError> {
        let show = RdmaShow { slot: slot.map(str::to_owned), first_qp };
        match self.call(&Request::RdmaShow(show))? {
            Answer::RdmaShow(report) => Ok(report),
            other => Err(self.foreign(format!("{other:?} is no answer to rdma.show"))),
        }
    }

    fn read_reply(&mut self) -> Result<Reply, ClientError> {
        let mut line = Vec::new();
        let limit = MAX_REPLY as u64 + 1;
        (&mut self.stream).take(limit).read_until(b'\n', &mut line).map_err(|e| self.io(e))?;
        if line.last() != Some(&b'\n') {
            return Err(self.foreign("it hung up in the middle of a reply, or its reply has no end".into()));
        }
        serde_json::from_slice(&line).map_err(|e| self.foreign(e.to_string()))
    }

    fn io(&self, source: io::Error) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            IoKind::WouldBlock | IoKind::TimedOut => ClientError::Silent(path),
            _ => ClientError::Io { path, source },
        }
    }

    fn foreign(&self, reason: String) -> ClientError {
        ClientError::Foreign { path: self.path.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Asks a server that says `answer`, whatever it is asked.
    fn ask(answer: &'static [u8]) -> Result<VmInfo, ClientError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            stream.read_line(&mut String::new()).unwrap();
            stream.get_mut().write_all(answer).unwrap();
        });
        let result = Client::connect(&path).unwrap().vm_info();
        server.join().unwrap();
        result
    }

    #[test]
    fn nobody_there_says_how_to_start_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let absent = || Client::connect(&path).unwrap_err();
        assert!(matches!(absent(), ClientError::Absent(_)));
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(absent(), ClientError::Absent(_)));
        assert!(absent().to_string().contains("--api-socket"));
    }

    #[test]
    fn what_is_no_reply_is_said_to_be_none() {
        for answer in [
            &b""[..],
            b"SSH-2.0\n",
            b"{\"version\":1,\"id\":1",
            b"{\"version\":2,\"id\":1,\"error\":{\"kind\":\"internal\",\"message\":\"\"}}\n",
            b"{\"version\":1,\"id\":8,\"error\":{\"kind\":\"internal\",\"message\":\"\"}}\n",
            b"{\"version\":1,\"id\":1,\"ok\":{\"rdma.show\":{\"devices\":[]}}}\n",
        ] {
            assert!(matches!(ask(answer), Err(ClientError::Foreign { .. })), "{answer:?}");
        }
        let refused = ask(b"{\"version\":1,\"id\":1,\"error\":{\"kind\":\"internal\",\"message\":\"m\"}}\n");
        assert!(matches!(refused, Err(ClientError::Refused(error)) if error.message == "m"));
    }
}
