//! Machines that count what they are sent.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::asm::Asm;
use super::{Guest, finish, until, verbena, wait};

/// Counts the bytes it gets on its first serial port in a word of memory, and answers each with the count: only a guest
/// that keeps memory and registers counts on. A `q` ends it.
pub fn counter() -> Guest {
    let code = Asm::new().print("ready").raw(&[0x30, 0xc9]);
    let top = code.here();
    let mut code = code.in_al(0x3fd).test_al(1);
    let empty = code.jump_if_zero();
    code = code.in_al(0x3f8).compare_al(b'q');
    let quit = code.jump_if_zero();
    // inc cl; inc byte [0x400000]; mov al, [0x400000] + 'a' - 1, if both agree
    code = code.raw(&[0xfe, 0xc1]).raw(&[0x48, 0xbb]).raw(&0x40_0000_u64.to_le_bytes());
    code = code.raw(&[0xfe, 0x03, 0x8a, 0x03, 0x38, 0xc8]);
    let agrees = code.jump_if_zero();
    code = code.exit(3);
    code.land(agrees);
    code = code.raw(&[0x04, b'a' - 1]).out_al(0x3f8).jump(top);
    code.land(empty);
    code = code.out32(0x514, 1000).jump(top);
    code.land(quit);
    Guest::new(&code.exit(0).code())
}

/// A running machine, its serial port and its API socket.
pub struct Machine {
    pub child: Child,
    pub serial: UnixStream,
    pub api: PathBuf,
}

impl Machine {
    pub fn start(guest: &Guest, name: &str, arguments: &[&str]) -> Self {
        Self::begin(guest, guest.command(), name, arguments)
    }

    /// A process that waits at `at` for the machine of `guest`.
    pub fn receive(guest: &Guest, name: &str, at: &str, arguments: &[&str]) -> Self {
        let mut command = guest.command_of("receive");
        command.args(["--listen", at]);
        Self::begin(guest, command, name, arguments)
    }

    fn begin(guest: &Guest, mut command: Command, name: &str, arguments: &[&str]) -> Self {
        let (com, api) = (guest.path(&format!("{name}.com")), guest.path(&format!("{name}.api")));
        let serial = format!("num=1,type=socket,path={}", com.display());
        command.args(["--serial", &serial, "--api-socket", api.to_str().unwrap()]).args(arguments);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let serial = until("the socket", || UnixStream::connect(&com).ok());
        serial.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { child, serial, api }
    }

    pub fn expect(&mut self, text: &str) {
        let mut bytes = vec![0; text.len()];
        self.serial.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), text);
    }

    pub fn count(&mut self, answers: &str) {
        self.serial.write_all(&vec![b'.'; answers.len()]).unwrap();
        self.expect(answers);
    }

    pub fn control(&self, words: &[&str]) -> Output {
        let socket = ["--api-socket", self.api.to_str().unwrap()];
        finish(verbena().args(words).args(socket).stdout(Stdio::piped()).spawn().unwrap())
    }

    pub fn quit(mut self) {
        self.serial.write_all(b"q").unwrap();
        assert_eq!(wait(&mut self.child).code(), Some(0));
    }
}

/// A failed test leaves no machine behind.
impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
