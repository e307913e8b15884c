//! How a run ends, as a script sees it.

mod common;

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use common::asm::Asm;
use common::{Guest, code_of, finish, kvm, send_signal, stderr, stdout, verbena, wait, write_file};
use rustix::process::Signal;

const RESET_CONTROL: u16 = 0xcf9;
const PM1_CONTROL: u16 = 0x604;

fn status_and_error(arguments: &[&str]) -> (i32, String) {
    let output =
        finish(verbena().args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    (code_of(&output), stderr(&output))
}

#[test]
fn guest_prints_and_powers_off_with_0() {
    if !kvm() {
        return;
    }
    let s5 = 5 << 10 | 1 << 13;
    let guest = Guest::new(&Asm::new().print("hello").out16(PM1_CONTROL, s5).exit(9).code());
    let output = guest.run(&[]);
    assert_eq!((code_of(&output), stdout(&output).as_str()), (0, "hello"), "{}", stderr(&output));
}

#[test]
fn several_cpus_start_and_stop() {
    if !kvm() {
        return;
    }
    // The first CPU ends the machine, the others are halted.
    let mut code = Asm::new().raw(&[0x48, 0x85, 0xf6]);
    let first = code.jump_if_zero();
    let top = code.here();
    let mut code = code.out8(0x510, 0).jump(top);
    code.land(first);
    let guest = Guest::new(&code.print("one").exit(0).code());
    let output = guest.run(&["--cpus", "3"]);
    assert_eq!((code_of(&output), stdout(&output).as_str()), (0, "one"), "{}", stderr(&output));
}

#[test]
fn triple_fault_is_6_and_says_where() {
    if !kvm() {
        return;
    }
    let output = Guest::new(&[0x0f, 0x0b]).run(&[]);
    assert_eq!(code_of(&output), 6);
    assert!(stderr(&output).contains("triple fault at rip 0x200000"), "{}", stderr(&output));
}

#[test]
fn reboot_is_7_if_asked_to_exit() {
    if !kvm() {
        return;
    }
    let guest = Guest::new(&Asm::new().out8(RESET_CONTROL, 6).exit(9).code());
    assert_eq!(code_of(&guest.run(&["--on-reboot", "exit"])), 7);
}

#[test]
fn reboot_starts_the_guest_again_until_it_powers_off() {
    if !kvm() {
        return;
    }
    // Memory is new after a reset; what tells the runs apart is the serial input, read one byte a run.
    let mut code = Asm::new().print("?");
    let top = code.here();
    code = code.in_al(0x3fd).test_al(1);
    let empty = code.jump_if_zero();
    code = code.in_al(0x3f8).out_al(0x3f8).compare_al(b'q');
    let quit = code.jump_if_zero();
    code = code.out8(RESET_CONTROL, 6);
    code.land(empty);
    code = code.out32(0x514, 1000).jump(top);
    code.land(quit);
    let guest = Guest::new(&code.exit(0).code());
    let mut child = guest.command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for byte in *b"abq" {
        let mut prompt_and_echo = [0; 2];
        output.read_exact(&mut prompt_and_echo[..1]).unwrap();
        std::io::Write::write_all(&mut input, &[byte]).unwrap();
        output.read_exact(&mut prompt_and_echo[1..]).unwrap();
        assert_eq!(prompt_and_echo, [b'?', byte]);
    }
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn interrupt_ends_a_running_guest_with_8() {
    if !kvm() {
        return;
    }
    let code = Asm::new().print("x");
    let top = code.here();
    let guest = Guest::new(&code.jump(top).code());
    let mut child = guest.command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    send_signal(&child, Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(8));
}

#[test]
fn terminate_presses_the_power_button() {
    if !kvm() {
        return;
    }
    // Polls the status register for the button, then ends.
    let code = Asm::new().print("x");
    let top = code.here();
    let mut code = code.in_al(0x601).test_al(1);
    let released = code.jump_if_zero();
    code = code.print("pressed").exit(0);
    code.land(released);
    let guest = Guest::new(&code.out32(0x514, 1000).jump(top).code());
    let mut child = guest.command().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    send_signal(&child, Signal::TERM);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((wait(&mut child).code(), rest.as_str()), (Some(0), "pressed"));
}

#[test]
fn usage_errors_are_2_and_name_the_option() {
    for (arguments, expected) in [
        (&["run"][..], "--kernel"),
        (&["run", "--kernel", "k", "--disk", "path=x,sizr=1"], "unknown key `sizr`"),
        (&["run", "--kernel", "k", "--cpus", "0"], "CPUs"),
        (&["run", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["frob"], "frob"),
    ] {
        let (status, error) = status_and_error(arguments);
        assert_eq!(status, 2, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_not_a_kernel_is_3() {
    if !kvm() {
        return;
    }
    for path in ["/dev/null", "/nonexistent", "/"] {
        let (status, error) = status_and_error(&["run", "--kernel", path, "--memory", "64M"]);
        assert_eq!(status, 3, "{error}");
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn what_is_in_use_or_too_large_is_5() {
    if !kvm() {
        return;
    }
    let guest = Guest::new(&Asm::new().exit(0).code());
    let socket = guest.path("serial");
    let _listener = UnixListener::bind(&socket).unwrap();
    let output = guest.run(&["--serial", &format!("type=socket,path={}", socket.display())]);
    assert_eq!(code_of(&output), 5, "{}", stderr(&output));

    let disk = guest.path("disk");
    write_file(&disk, &[0; 512]);
    let holder = std::fs::File::open(&disk).unwrap();
    holder.lock().unwrap();
    let output = guest.run(&["--disk", disk.to_str().unwrap()]);
    assert_eq!(code_of(&output), 5, "{}", stderr(&output));

    let program = guest.path("guest");
    let (status, error) = status_and_error(&["run", "--memory", "200G", "--bare", program.to_str().unwrap()]);
    assert_eq!(status, 5, "{error}");
}

#[test]
fn help_and_version_are_0_and_teach() {
    for (arguments, expected) in [
        (&["--help"][..], "Exit status"),
        (&["run", "--help"], "link=switch:"),
        (&["switch", "--help"], "--socket"),
        (&["--version"], "verbena"),
    ] {
        let output = verbena().args(arguments).output().unwrap();
        assert_eq!(code_of(&output), 0);
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
}
