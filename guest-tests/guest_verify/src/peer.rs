//! The side channel: a TCP connection on which the two ends agree, one JSON value a line.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How long a listener may take to be there, and an answer to come.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest line that is read.
const MAX_LINE: u64 = 4096;

/// What one end has to know about the other's queue pair and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number that it sends.
    pub psn: u32,
    /// Its GID.
    pub gid: Ipv6Addr,
    /// Largest path MTU of its port, in bytes.
    pub mtu: u32,
    /// Reads and atomics that it answers at a time.
    pub responder_resources: u8,
    /// Address of the memory it exposes.
    pub address: u64,
    /// Key of that memory.
    pub rkey: u32,
}

/// The other end.
pub struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    /// Waits for one peer.
    ///
    /// # Errors
    ///
    /// When the port cannot be used.
    pub fn accept(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .with_context(|| format!("Cannot listen on TCP port {port}"))?;
        let (stream, _) = listener.accept().context("Cannot accept a peer")?;
        Self::new(stream)
    }

    /// Connects to a peer, by name or address, which may still be starting.
    ///
    /// # Errors
    ///
    /// When it does not answer in time.
    pub fn connect(host: &str, port: u16) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect((host, port)) {
                Ok(stream) => return Self::new(stream),
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(200)),
                Err(error) => return Err(error).with_context(|| format!("Cannot connect to {host}")),
            }
        }
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Address of this end of the connection, IPv4 as such.
    ///
    /// # Errors
    ///
    /// When the connection is gone.
    pub fn local_address(&self) -> Result<IpAddr> {
        Ok(SocketAddr::ip(&self.stream.get_ref().local_addr()?).to_canonical())
    }

    /// Sends a value.
    ///
    /// # Errors
    ///
    /// When the connection is gone.
    pub fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).context("The peer is gone")
    }

    /// Receives a value.
    ///
    /// # Errors
    ///
    /// When the connection is gone or the peer says something else.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        std::io::Read::take(&mut self.stream, MAX_LINE)
            .read_line(&mut line)
            .context("The peer does not answer")?;
        if line.is_empty() {
            bail!("The peer is gone");
        }
        serde_json::from_str(&line).context("The peer speaks another language")
    }

    /// Sends a value and receives the other end's.
    ///
    /// # Errors
    ///
    /// As [`Peer::send`] and [`Peer::receive`].
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, value: &T) -> Result<T> {
        self.send(value)?;
        self.receive()
    }

    /// Returns when both ends have come here.
    ///
    /// # Errors
    ///
    /// When the other end comes to another place, or is gone.
    pub fn meet(&mut self, place: &str) -> Result<()> {
        let theirs = self.exchange(&place.to_string())?;
        if theirs != place {
            bail!("The peer is at `{theirs}` while this end is at `{place}`");
        }
        Ok(())
    }
}
