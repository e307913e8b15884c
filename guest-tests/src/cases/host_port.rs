//! A process of the host as the other end: a stock `rping` in a guest pings it.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use device_model::net::MacAddr;
use host_io::switch::{SwitchLink, SwitchLinkOptions};
use host_port::{Buffer, ConnId, Event, HostPort, PortConfig, Queues};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Completion, RecvWr, SendFlags, SendOp, SendWr, SgeList, WcOpcode, WcStatus};

use crate::guests::Task;
use crate::suite::{Case, Stand};

/// The host's place in the guests' first network, which has room for 26 guests.
const ADDRESS: [u8; 4] = [10, 0, 0, 200];
/// The port of `rping`.
const PORT: u16 = 7174;
/// Bytes of its messages: an address, a key and a length.
const MESSAGE: u32 = 16;
/// Largest ping.
const MAX_PING: u32 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(120);

pub fn cases() -> Vec<Case> {
    let case =
        |name: &'static str, options: &'static str| Case::new(name, move |stand| rping(stand, options));
    vec![
        case("host-port/stock-rping-pings-a-process-of-the-host", "-C 20 -V -v"),
        case("host-port/stock-rping-pings-it-with-65000-bytes", "-C 10 -S 65000 -V"),
    ]
}

fn rping(stand: &mut Stand<'_>, options: &str) -> Result<()> {
    let server = Server::start(&stand.guests.switch(0))?;
    let client = format!("rping -c -a {} {options}", IpAddr::from(ADDRESS));
    let output = stand.a().run(Task::shell(client).timeout(TIMEOUT))?;
    let pings = server.stop()?;
    ensure!(output.succeeded(), "rping failed after {pings} pings: {output:?}");
    ensure!(pings >= 10, "The host saw {pings} pings");
    Ok(())
}

/// A server that `rping -c` understands, in a thread.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize>>,
}

impl Server {
    fn start(switch: &Path) -> Result<Self> {
        let options = SwitchLinkOptions { name: "host".into(), mtu: None };
        let link = SwitchLink::connect(switch, &options).context("No port of the switch")?;
        let mac = MacAddr([2, 0, 0, 0, 0xff, 200]);
        let config = PortConfig { mac, ip: IpAddr::from(ADDRESS), arena: 16 << 20, direct: None };
        let mut port = HostPort::new(&config, Arc::new(link)).context("No host port")?;
        port.endpoint().listen(PORT);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || serve(port, &stopped));
        Ok(Self { stop, thread })
    }

    /// How many pings it has answered.
    fn stop(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("The server panicked"))?
    }
}

/// Where a ping is.
enum Step {
    /// The client is to say where its data are.
    Source,
    /// They are being read.
    Reading(Buffer),
    /// The client is to say where it wants them back.
    Sink(Buffer),
}

/// One client.
struct Session {
    conn: ConnId,
    messages: Buffer,
    /// What pings are read into.
    data: Option<Buffer>,
    step: Step,
    pings: usize,
}

fn serve(mut port: HostPort, stop: &AtomicBool) -> Result<usize> {
    let mut session: Option<Session> = None;
    let mut pings = 0;
    while !stop.load(Ordering::Relaxed) {
        let limit = Timespec::try_from(Duration::from_millis(50))?;
        poll(&mut [PollFd::new(&port, PollFlags::IN)], Some(&limit)).context("Cannot wait")?;
        port.run();
        while let Some(event) = port.endpoint().event() {
            match event {
                Event::Request { conn, .. } => session = Some(Session::accept(&mut port, conn)?),
                Event::Done(_, completion) => {
                    if let Some(session) = &mut session {
                        session.done(&mut port, &completion)?;
                        pings = pings.max(session.pings);
                    }
                }
                Event::Closed(conn) => port.endpoint().close(conn, &[]),
                Event::Connected(..) | Event::Failed(..) | Event::SendRetired(_) => {}
            }
        }
        port.settle();
    }
    Ok(pings)
}

impl Session {
    fn accept(port: &mut HostPort, conn: ConnId) -> Result<Self> {
        let endpoint = port.endpoint();
        endpoint.accept(conn, Queues { sends: 8, receives: 4 }, &[])?;
        let messages = endpoint.arena().alloc(2 * MESSAGE).context("No memory")?;
        let session = Self { conn, messages, data: None, step: Step::Source, pings: 0 };
        session.receive(port)?;
        Ok(session)
    }

    fn receive(&self, port: &mut HostPort) -> Result<()> {
        let endpoint = port.endpoint();
        let sges = SgeList::from_slice(&[endpoint.sge(self.messages, 0, MESSAGE)]);
        endpoint.post_recv(self.conn, RecvWr { wr_id: 0, sges, bad: None })?;
        Ok(())
    }

    fn post(&self, port: &mut HostPort, op: SendOp, from: Buffer, offset: u32, length: u32) -> Result<()> {
        let endpoint = port.endpoint();
        let sges = SgeList::from_slice(&[endpoint.sge(from, offset, length)]);
        endpoint.post_send(self.conn, SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, sges })?;
        Ok(())
    }

    /// Tells the client to go on.
    fn go_ahead(&self, port: &mut HostPort) -> Result<()> {
        self.receive(port)?;
        self.post(port, SendOp::Send { imm: None }, self.messages, MESSAGE, MESSAGE)
    }

    fn done(&mut self, port: &mut HostPort, completion: &Completion) -> Result<()> {
        if completion.status != WcStatus::Success {
            // What is under way when the client leaves.
            ensure!(completion.status == WcStatus::WrFlushErr, "{completion:?}");
            return Ok(());
        }
        match completion.opcode {
            WcOpcode::Recv => self.told(port),
            WcOpcode::RdmaRead => {
                if let Step::Reading(data) = self.step {
                    self.step = Step::Sink(data);
                }
                self.go_ahead(port)
            }
            _ => Ok(()),
        }
    }

    /// The client has said where memory is.
    fn told(&mut self, port: &mut HostPort) -> Result<()> {
        let message = port.endpoint().arena().read(self.messages, MESSAGE)?;
        let word = |at: usize| message[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        let (rkey, length) = (word(8), word(12));
        ensure!((1..=MAX_PING).contains(&length), "A ping of {length} bytes");
        match self.step {
            Step::Source => {
                // All pings of a client have the same length.
                let data = match self.data {
                    Some(data) if data.len == length => data,
                    _ => port.endpoint().arena().alloc(length).context("No memory")?,
                };
                self.data = Some(data);
                self.step = Step::Reading(data);
                self.post(port, SendOp::Read { addr, rkey }, data, 0, length)
            }
            Step::Sink(data) => {
                self.post(port, SendOp::Write { addr, rkey, imm: None }, data, 0, length.min(data.len))?;
                self.step = Step::Source;
                self.pings += 1;
                self.go_ahead(port)
            }
            Step::Reading(_) => Ok(()),
        }
    }
}
