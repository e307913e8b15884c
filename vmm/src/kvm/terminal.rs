//! Giving the terminal back when a fatal signal ends the process.

use std::os::fd::RawFd;
use std::sync::OnceLock;

/// What a fatal signal handler needs; written once, before the handlers are installed.
static SAVED: OnceLock<(RawFd, libc::termios)> = OnceLock::new();

/// Signals after which no destructor runs.
const FATAL: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGSYS];

extern "C" fn restore_and_die(signal: libc::c_int) {
    if let Some((fd, modes)) = SAVED.get() {
        // SAFETY: tcsetattr is async-signal-safe and only reads `modes`, which is never written again.
        unsafe { libc::tcsetattr(*fd, libc::TCSANOW, modes) };
    }
    // SAFETY: SA_RESETHAND has restored the default action, so this ends the process; raise is async-signal-safe.
    unsafe { libc::raise(signal) };
}

/// Makes fatal signals put back the present modes of the terminal `fd` before they end the process.
///
/// Call it before the modes are changed. Later calls have no effect.
pub fn restore_on_fatal_signals(fd: RawFd) {
    // SAFETY: all-zero is a valid `termios`, an aggregate of integers.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `modes` is a live, writable `termios`; a bad `fd` is an error return.
    if unsafe { libc::tcgetattr(fd, &mut modes) } != 0 || SAVED.set((fd, modes)).is_err() {
        return;
    }
    // SAFETY: all-zero is a valid `sigaction`: no flags, no mask, default handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = restore_and_die as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
    for signal in FATAL {
        // SAFETY: `action` is initialised, and its handler calls only async-signal-safe functions.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}
