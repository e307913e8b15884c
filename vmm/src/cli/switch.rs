//! `verbena switch`

use std::path::PathBuf;

use host_io::event::Event;
use host_io::switch::{self, Options, SwitchError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Exit, Result};

const EXAMPLES: &str = "\
Example:
  verbena switch --socket /tmp/lab.sock &
  verbena run … --net link=switch:/tmp/lab.sock
  verbena run … --net link=switch:/tmp/lab.sock

The switch learns addresses, serves any number of machines of the same user, and prints its counters when it is
interrupted.";

/// Run an Ethernet switch for the virtual machines of this host; needs no privilege.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Command {
    /// UNIX socket that machines connect to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// Largest IP packet in bytes; a port may have a smaller MTU
    #[arg(long, value_name = "BYTES", default_value_t = switch::DEFAULT_MTU)]
    mtu: u16,
}

impl Command {
    pub(super) fn run(self) -> Result<Exit> {
        let options = Options { mtu: self.mtu, ..Options::default() };
        let counters = switch::run(&self.socket, options, stop_on_signal()?).map_err(explain)?;
        println!("{counters}");
        Ok(Exit::PoweredOff)
    }
}

/// An event that becomes readable when this process is asked to end.
fn stop_on_signal() -> Result<Event> {
    let failed = |e| Error::io("watch for signals", e);
    let stop = Event::new().map_err(failed)?;
    let signalled = stop.try_clone().map_err(failed)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map_err(failed)?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || signals.forever().for_each(|_| signalled.signal()))
        .map_err(failed)?;
    Ok(stop)
}

fn explain(error: SwitchError) -> Error {
    match error {
        SwitchError::Listen(error) => error.into(),
        SwitchError::Loop(source) => Error::io("run the switch's event loop", source),
    }
}
