//! `verbena target` and `verbena fabric` as a user has them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A target that listens.
struct Target {
    child: Child,
    url: String,
}

impl Target {
    fn start(listen: &str, exports: &[&str]) -> Self {
        Self::start_with(listen, &[], exports)
    }

    fn start_with(listen: &str, words: &[&str], exports: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        command.args(["target", "--listen", listen]).args(words);
        exports.iter().for_each(|export| {
            command.args(["--export", export]);
        });
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening at ").unwrap().to_owned();
        Self { child, url }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fabric(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbena")).arg("fabric").args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn image(directory: &Path) -> File {
    let file =
        File::options().create(true).truncate(false).read(true).write(true).open(directory.join("d.img"));
    file.unwrap()
}

#[test]
fn a_disk_is_exported_and_used_from_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    image(directory.path()).set_len(4 << 20).unwrap();
    let path = directory.path().join("d.img");
    let export = format!("disk0,path={},queues=2", path.display());
    let mut target = Target::start("tcp://127.0.0.1:0", &[&export, "name=r,device=rng"]);
    let disk = format!("{}/disk0", target.url);

    let list = fabric(&["list", &target.url]);
    assert!(text(&list).contains("disk          2  disk0\nrng           1  r\n"), "{}", text(&list));
    assert!(text(&fabric(&["inspect", &disk])).contains("size      4194304 bytes, read and write"));
    let verified = fabric(&["verify", &disk, "--overwrite", "--offset", "1M", "--digest"]);
    assert!(verified.status.success(), "{}", text(&verified));

    let bytes: Vec<u8> = (0..700 * 512).map(|n| (n % 239) as u8).collect();
    let mut write = Command::new(env!("CARGO_BIN_EXE_verbena"))
        .args(["fabric", "write", &disk, "--offset", "512"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    write.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(write.wait().unwrap().success());
    let mut on_disk = vec![0; bytes.len()];
    image(directory.path()).read_exact_at(&mut on_disk, 512).unwrap();
    assert!(on_disk == bytes);
    assert!(
        fabric(&["read", &disk, "--offset", "512", "--length", &bytes.len().to_string()]).stdout == bytes
    );
    let bench = fabric(&["bench", &disk, "--seconds", "0", "--depth", "4"]);
    assert!(bench.status.success() && text(&bench).contains("requests in"), "{}", text(&bench));

    target.signal(Signal::TERM);
    assert_eq!(target.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    target.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// The same over RDMA: target and initiator are ports of a switch. Each is the only one of its address, so a second initiator
/// waits for the first to end, as here.
#[test]
fn a_disk_is_used_by_rdma() {
    let directory = tempfile::tempdir().unwrap();
    image(directory.path()).set_len(4 << 20).unwrap();
    let socket = directory.path().join("lan.sock");
    let mut switch = Command::new(env!("CARGO_BIN_EXE_verbena"))
        .arg("switch")
        .arg("--socket")
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !socket.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let port = |n: u8| format!("link=switch:{},ip=10.0.0.{n}", socket.display());
    let export = format!("disk0,path={},queues=2", directory.path().join("d.img").display());
    let target = Target::start_with("rdma://10.0.0.9", &["--net", &port(9)], &[&export]);
    assert_eq!(target.url, "rdma://10.0.0.9:8549");
    let disk = format!("{}/disk0", target.url);
    let fabric = |words: &[&str]| fabric(&[words, &["--net", &port(8)]].concat());

    let list = fabric(&["list", &target.url]);
    assert!(text(&list).contains("disk          2  disk0\n"), "{}", text(&list));
    let inspected = fabric(&["inspect", &disk]);
    assert!(text(&inspected).contains("size      4194304 bytes, read and write"), "{}", text(&inspected));
    let verified = fabric(&["verify", &disk, "--overwrite", "--offset", "1M"]);
    assert!(verified.status.success(), "{}", text(&verified));
    let bench = fabric(&["bench", &disk, "--seconds", "0", "--depth", "4"]);
    let promised = "for each request: 1.00 messages sent, 1.00 received, 1.00 keys named";
    assert!(bench.status.success() && text(&bench).contains("requests in"), "{}", text(&bench));
    let bench = fabric(&["bench", &disk, "--seconds", "1", "--depth", "4"]);
    assert!(text(&bench).contains(promised), "{}", text(&bench));
    let _ = switch.kill();
    let _ = switch.wait();
}

#[test]
fn mistakes_are_named() {
    let directory = tempfile::tempdir().unwrap();
    image(directory.path()).set_len(4 << 20).unwrap();
    let path = directory.path().join("d.img");
    let export = format!("disk0,path={},readonly", path.display());
    let target = Target::start("tcp://127.0.0.1:0", &[&export]);
    let disk = format!("{}/disk0", target.url);
    let other = format!("{}/other", target.url);
    for (words, status, why) in [
        (&["inspect", &target.url][..], 2, "names no device"),
        (&["inspect", &other], 1, "exports no device of that name"),
        (&["read", &disk, "--offset", "3"], 2, "multiples of 512"),
        (&["read", &disk, "--length", "5M"], 2, "The disk has 4194304 bytes"),
        (&["verify", &disk], 2, "--overwrite"),
        (&["verify", &disk, "--overwrite"], 1, "the disk reports an error"),
        (&["bench", &disk, "--block-size", "8M"], 2, "block size of 8M is not possible"),
        (&["list", "tcp://127.0.0.1:1"], 1, "refused"),
        (&["inspect", "tcp://127.0.0.1:1/x", "--timeout", "0"], 1, "refused"),
        (&["list", "http://host"], 2, "does not begin with tcp:// or rdma://"),
        (&["list", "rdma://10.0.0.1"], 2, "RDMA leaves by a port of its own"),
    ] {
        let output = fabric(words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{words:?}: {}", text(&output));
    }
    // A second writer of the same image, and exports that are none.
    let writable = format!("disk0,path={}", path.display());
    for (exports, status, why) in [
        (&[writable.as_str()][..], 5, "in use by another process"),
        (&[&export, &export], 2, "Two exports are named disk0"),
        (&["disk0"], 2, "path=FILE"),
        (&["x,path=/dev/null"], 3, "neither a file nor a block device"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        command.args(["target", "--listen", "tcp://127.0.0.1:0"]);
        exports.iter().for_each(|export| {
            command.args(["--export", export]);
        });
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{exports:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{exports:?}: {}", text(&output));
    }
}
