//! Looking into a machine from the command line.

mod common;

use std::process::{Output, Stdio};

use common::asm::Asm;
use common::{Guest, code_of, finish, kvm, send_signal, stderr, stdout, until, verbena};
use rustix::process::Signal;

fn run(arguments: &[&str]) -> Output {
    let mut command = verbena();
    command.args(arguments).env_remove("VERBENA_API_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped());
    finish(command.spawn().unwrap())
}

#[test]
fn nobody_at_the_socket_is_5_and_says_how_to_start_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    for command in ["rdma", "net"] {
        let output = run(&[command, "show", "--api-socket", path.to_str().unwrap()]);
        assert_eq!(code_of(&output), 5);
        assert!(stderr(&output).contains("verbena run … --api-socket"), "{}", stderr(&output));
        let output = run(&[command, "show"]);
        assert_eq!(code_of(&output), 2);
        assert!(stderr(&output).contains("VERBENA_API_SOCKET"), "{}", stderr(&output));
    }
}

#[test]
fn machine_answers_until_it_ends_and_takes_its_socket_along() {
    if !kvm() {
        return;
    }
    // It says that it runs, and then does nothing until it is ended.
    let code = Asm::new().print("up");
    let top = code.here();
    let guest = Guest::new(&code.jump(top).code());
    let path = guest.path("api.sock");
    let socket = path.to_str().unwrap().to_owned();
    let arguments = ["--api-socket", &socket, "--net", "link=loopback,id=lan", "--net", "link=none,rdma=off"];
    let mut command = guest.command();
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let machine = command.spawn().unwrap();
    until("a socket", || path.exists().then_some(()));
    let show = |words: &[&str]| run(&[words, &["--api-socket", &socket]].concat());
    // Refused while the machine is being built.
    let report = until("a report", || {
        let output = show(&["rdma", "show", "--json"]);
        output.status.success().then(|| stdout(&output))
    });
    assert!(report.contains("\"slot\": \"lan\"") && report.contains("\"driver\": \"none\""), "{report}");
    let table = stdout(&show(&["rdma", "show", "lan"]));
    assert!(table.contains("port DOWN") && table.contains("No driver"), "{table}");
    let net = stdout(&show(&["net", "show"]));
    assert!(net.contains("lan") && net.contains("net1"), "{net}");
    let wrong = show(&["rdma", "show", "net1"]);
    assert_eq!(code_of(&wrong), 2);
    assert!(stderr(&wrong).contains("rdma=off"), "{}", stderr(&wrong));

    send_signal(&machine, Signal::INT);
    finish(machine);
    assert!(!path.exists());
}

#[test]
fn doctor_fails_for_a_guest_without_driver_and_says_what_to_do() {
    let tree = tempfile::tempdir().unwrap();
    for module in ["vmxnet3", "ib_core", "ib_uverbs", "rdma_ucm"] {
        std::fs::write(tree.path().join(format!("{module}.ko")), "").unwrap();
    }
    let check = || run(&["doctor", "--modules", tree.path().to_str().unwrap()]);
    let output = check();
    assert_eq!(code_of(&output), 1);
    let text = stdout(&output);
    assert!(text.contains("BAD   Guest module vmw_pvrdma") && text.contains("linux-source"), "{text}");
    std::fs::write(tree.path().join("vmw_pvrdma.ko.xz"), "").unwrap();
    let text = stdout(&check());
    assert!(text.contains("ok    Guest module vmw_pvrdma"), "{text}");
}
