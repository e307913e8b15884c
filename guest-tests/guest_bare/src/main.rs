//! `verbena-bare`: a guest without an operating system that puts its RDMA device to work.
//!
//! `verbena run --bare` starts it in ring 3, where its code runs at native speed even under a KVM made of software, and
//! tells it by `bare_abi` what the machine has. The command line says what it does:
//!
//! | command line | |
//! |---|---|
//! | empty | runs the cases of [`guest_cases`] |
//! | `polling rounds=N` | has one program poll and another wait in one process, for so many rounds (see [`guest_cases::polling`]) |
//! | `load peer=MAC streams=N` | exchanges a checked load with another machine (see [`load`]) |
//!
//! It prints a line `TEST NAME ok` or `TEST NAME FAIL REASON` for each case and ends the machine with status 0 if none
//! failed.
//!
//! Nothing here protects anyone: the program owns its machine. It uses one CPU and no interrupts; causes of interrupts
//! are read from the device.

#![no_std]
#![no_main]

extern crate alloc;

#[allow(unsafe_code, reason = "the global allocator's contract is unsafe")]
mod heap;
#[allow(unsafe_code, reason = "the compiler calls these by their C names, on raw pointers")]
mod intrinsics;
#[allow(unsafe_code, reason = "device registers, ports and memory that a device writes")]
mod io;
mod load;
mod machine;
mod pci;
mod print;

use bare_abi::BootInfo;
use guest_cases::cases;
use pvrdma_driver::Driver;
use pvrdma_spec::version;

use machine::BareMachine;
use print::println;

/// Where the VMM starts the program, with the boot information's address and the number of the CPU.
#[allow(unsafe_code, reason = "the VMM finds the entry point by its name")]
// SAFETY: no other symbol of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn _start(info: u64, cpu: u64) -> ! {
    if cpu != 0 {
        io::rest_for_ever();
    }
    let info = io::boot_info(info);
    match run(&info) {
        0 => io::exit(0),
        failed => {
            println!("{failed} cases failed");
            io::exit(1)
        }
    }
}

/// Does what the command line says and gives how much of it failed.
fn run(info: &BootInfo) -> u32 {
    let free = heap::start(info.free_start, info.free_end);
    let machine = match BareMachine::find(info.ecam, free, info.free_end) {
        Ok(machine) => machine,
        Err(reason) => {
            println!("TEST bare/machine FAIL {reason}");
            return 1;
        }
    };
    let driver = match Driver::probe(machine, version::QP_HANDLE) {
        Ok(driver) => driver,
        Err(error) => {
            println!("TEST bare/probe FAIL {error}");
            return 1;
        }
    };
    let failed = match io::command_line(info).trim_ascii() {
        b"" => run_cases(&driver),
        line if line.starts_with(b"polling ") => run_polling(&driver, line),
        line => load::run(&driver, line, info.tsc_khz),
    };
    driver.remove();
    failed
}

fn run_cases(driver: &Driver<BareMachine>) -> u32 {
    let mut failed = 0;
    for case in cases() {
        match (case.run)(driver) {
            Ok(()) => println!("TEST bare/{} ok", case.name),
            Err(reason) => {
                failed += 1;
                println!("TEST bare/{} FAIL {reason}", case.name);
            }
        }
    }
    failed
}

fn run_polling(driver: &Driver<BareMachine>, line: &[u8]) -> u32 {
    let rounds = core::str::from_utf8(line).ok().and_then(|line| line.strip_prefix("polling rounds="));
    let outcome = match rounds.and_then(|rounds| rounds.parse().ok()) {
        Some(rounds) => guest_cases::polling::exchange(driver, rounds),
        None => Err("The command line is not `polling rounds=N`".into()),
    };
    match outcome {
        Ok(()) => println!("TEST bare/polling ok"),
        Err(reason) => {
            println!("TEST bare/polling FAIL {reason}");
            return 1;
        }
    }
    0
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("TEST bare/panic FAIL {info}");
    io::exit(1)
}
