//! What concerns the whole guest rather than one command.

use std::fs;

use guest_protocol::message::Report;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::system::{RebootCommand, uname};

/// Says who this guest is.
pub fn ready() -> Report {
    let name = uname();
    Report::Ready {
        host: name.nodename().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
    }
}

/// Collects children of this process that died and that nobody here waits for: as process 1 the agent inherits them.
pub fn bury_orphans(is_ours: impl Fn(u32) -> bool) {
    for pid in dead_children().filter(|pid| !is_ours(*pid)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn dead_children() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_dead_child(&stat)))
}

/// Whether a line of `/proc/PID/stat` tells of a zombie child of this process. The name in it may hold anything,
/// brackets too, so the fields are those behind the last bracket: state and parent.
fn is_dead_child(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    fields.next() == Some("Z") && fields.next() == Some(std::process::id().to_string().as_str())
}

/// Writes dirty data back and switches the machine off.
pub fn power_off() {
    end(RebootCommand::PowerOff);
}

/// Writes dirty data back and restarts the machine.
pub fn reboot() {
    end(RebootCommand::Restart);
}

fn end(how: RebootCommand) {
    rustix::fs::sync();
    if let Err(error) = rustix::system::reboot(how) {
        eprintln!("verbena-agent: Cannot end the machine: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombie_of_this_process_is_told_from_others() {
        let me = std::process::id();
        assert!(is_dead_child(&format!("812 (a) b) Z {me} 812 812 0")));
        assert!(!is_dead_child(&format!("812 (a) S {me} 812 812 0")));
        assert!(!is_dead_child("812 (a) Z 0 812 812 0"));
        assert!(!is_dead_child(""));
    }
}
