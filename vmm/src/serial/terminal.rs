//! The terminal in raw mode, and back.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr};

use crate::kvm::restore_on_fatal_signals;

/// The modes to go back to while the terminal is raw, for the panic hook.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal on standard input in raw mode. Its former modes come back when this is dropped, when any thread panics,
/// and when a fatal signal ends the process.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Switches standard input to raw mode if it is a terminal that this process is in the foreground of.
    ///
    /// # Errors
    ///
    /// When the terminal refuses.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        // A background process that touches the modes would be stopped.
        if !isatty(&stdin) || tcgetpgrp(&stdin).ok() != Some(getpgrp()) {
            return Ok(None);
        }
        let saved = tcgetattr(&stdin)?;
        restore_on_fatal_signals(stdin.as_fd().as_raw_fd());
        let mut raw = saved.clone();
        raw.make_raw();
        // Log lines still need their carriage returns; a guest's own survive a second one.
        raw.output_modes |= OutputModes::OPOST;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        install_panic_hook();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(saved) = saved
        && let Err(error) = tcsetattr(io::stdin(), OptionalActions::Now, &saved)
    {
        tracing::warn!(%error, "Failed to restore the terminal: run `reset`");
    }
}

fn install_panic_hook() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            former(info);
        }));
    });
}
