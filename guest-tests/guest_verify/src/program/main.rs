//! `verbena-verify`: moves data between two machines through a verbs device and checks every byte.
//!
//! One end listens, the other connects and decides what is moved. Both directions run at once on one reliable
//! connected queue pair. Each end prints what it found wrong and closes with one line
//! `VERIFY op=… messages=… bytes=… errors=…`; the exit status is 0 only if both ends found nothing wrong.

#[allow(unsafe_code, reason = "libibverbs is a C library; every call into it is in this module")]
mod verbs;

mod atomic;
mod read;
mod send;
mod session;
mod write;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use guest_verify::gid;
use guest_verify::peer::Peer;
use guest_verify::plan::{Operation, Plan};
use guest_verify::tally::Tally;

use session::Session;
use verbs::{Context, Domain, Memory};

/// Where the kernel lists verbs devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Move data through a verbs device and check every byte
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Address of the listening end; without it this end listens
    peer: Option<String>,

    /// TCP port for the two ends to agree on
    #[arg(long, default_value_t = 18600)]
    port: u16,

    /// GID to use, as an address [default: the local end of the TCP connection]
    #[arg(long)]
    gid: Option<IpAddr>,

    /// What to verify (the connecting end decides)
    #[arg(long, value_enum, default_value = "send")]
    op: Operation,

    /// Bytes of a message
    #[arg(long, default_value_t = 65_536)]
    size: u32,

    /// Messages in each direction
    #[arg(long, default_value_t = 100)]
    count: u32,

    /// Largest path MTU to use
    #[arg(long, default_value_t = 4096)]
    mtu: u32,

    /// Register a region of so many bytes with the first device, say how long that took, and move nothing
    #[arg(long, value_name = "BYTES", exclusive = true)]
    register: Option<usize>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("verbena-verify: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether both ends found every byte right.
fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(bytes) = arguments.register {
        return register(bytes).map(|()| true);
    }
    let mut peer = match &arguments.peer {
        Some(host) => Peer::connect(host, arguments.port)?,
        None => Peer::accept(arguments.port)?,
    };
    let plan = agree(arguments, &mut peer)?;
    let address = match arguments.gid {
        Some(address) => address,
        None => peer.local_address()?,
    };
    let rows = gid::rows(DEVICES.as_ref());
    let row = gid::find(&rows, address).with_context(|| {
        format!("No verbs device has the GID {address}; give the NIC beside it that address")
    })?;
    let mut session = Session::connect(peer, plan, row, arguments.peer.is_none())?;
    let tally = verify(&mut session, plan.operation)?;
    println!("{tally}");
    Ok(session.peer().exchange(&tally.is_clean())? && tally.is_clean())
}

/// Registers one region and lets go of it again.
fn register(bytes: usize) -> Result<()> {
    let rows = gid::rows(DEVICES.as_ref());
    let device = &rows.first().context("There is no verbs device with a GID")?.device;
    let domain = Domain::new(&Context::open(device)?)?;
    let start = Instant::now();
    let memory = Memory::new(&domain, bytes).with_context(|| format!("Cannot register {bytes} bytes"))?;
    let registered = start.elapsed();
    drop(memory);
    let (up, whole) = (registered.as_secs_f64(), start.elapsed().as_secs_f64());
    println!("REGISTER bytes={bytes} seconds={up:.3} deregister_seconds={:.3}", whole - up);
    Ok(())
}

/// The connecting end's plan, at both ends.
fn agree(arguments: &Arguments, peer: &mut Peer) -> Result<Plan> {
    let plan = match arguments.peer {
        Some(_) => {
            let plan = Plan {
                operation: arguments.op,
                size: arguments.size,
                count: arguments.count,
                mtu: arguments.mtu,
            };
            peer.send(&plan)?;
            plan
        }
        None => peer.receive()?,
    };
    if let Err(reason) = plan.check() {
        bail!(reason);
    }
    Ok(plan)
}

fn verify(session: &mut Session, operation: Operation) -> Result<Tally> {
    match operation {
        Operation::Send => send::verify(session),
        Operation::Write => write::verify(session),
        Operation::Read => read::verify(session),
        Operation::Atomic => atomic::verify(session),
    }
}
