//! Bare-metal test guests: a static ELF program started in ring 3 (see the `bare_abi` crate for what it finds).

mod ports;
mod state;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bare_abi::{BootInfo, MAGIC, STACK_SIZE, VERSION};
use device_model::ram::Ram;
use kvm_ioctls::VcpuFd;
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};
use zerocopy::IntoBytes;

use super::layout::{ECAM, HIGH_RAM};
use super::memory::low_ram_end;
use crate::error::{Error, Result};

pub(super) use ports::{BarePorts, Request};
pub(super) use state::{enable_interrupts, halt};

/// Where the machine keeps what the program must not overwrite; the program may use the rest of RAM.
mod place {
    /// Boot information.
    pub(super) const BOOT_INFO: u64 = 0x6000;
    /// Interrupt descriptor table, 4 KiB.
    pub(super) const IDT: u64 = 0x7000;
    /// Descriptor table and task state of each CPU.
    pub(super) const CPU_TABLES: u64 = 0x1_0000;
    /// Bytes of them: the task state has a bit for every port.
    pub(super) const CPU_TABLES_SIZE: u64 = 0x3000;
    /// Command line.
    pub(super) const CMDLINE: u64 = CPU_TABLES + CPU_TABLES_SIZE * super::MAX_CPUS as u64;
}

/// CPUs whose descriptor tables fit between the boot data.
const MAX_CPUS: usize = 16;
/// Longest command line.
const MAX_CMDLINE: usize = 0x1_0000;
/// Role name in messages.
const ROLE: &str = "a bare-metal guest";
/// Offset of `e_type` in an ELF header, and its value for a program with fixed addresses.
const E_TYPE: u64 = 16;
const ET_EXEC: [u8; 2] = [2, 0];

/// Loads `program` and puts every CPU at its entry point.
///
/// # Errors
///
/// [`Error::Image`] when the program is not what it should be or does not fit.
pub(super) fn start(ram: &Ram, vcpus: &[VcpuFd], program: &Path, cmdline: &str) -> Result<()> {
    let image = |reason: String| Error::Image { role: ROLE, path: program.to_owned(), reason };
    let (entry, end) = load(ram, program).map_err(image)?;
    if vcpus.len() > MAX_CPUS {
        return Err(Error::Usage(format!("A bare-metal guest has at most {MAX_CPUS} CPUs")));
    }
    if cmdline.len() > MAX_CMDLINE {
        return Err(Error::Usage(format!("The command line has more than {MAX_CMDLINE} bytes")));
    }
    // Stacks lie at the end of RAM, two for each CPU: the program's and its interrupt handlers'.
    let stacks = 2 * STACK_SIZE * vcpus.len() as u64;
    let top = low_ram_end(ram);
    let free_end = top.checked_sub(stacks).filter(|free_end| *free_end >= end);
    let free_end = free_end
        .ok_or_else(|| image(format!("it needs memory up to {end:#x} and stacks: give a larger --memory")))?;
    state::write_page_tables(ram)?;
    write(ram, place::CMDLINE, cmdline.as_bytes())?;
    let tsc_khz = vcpus.first().and_then(|vcpu| vcpu.get_tsc_khz().ok()).unwrap_or(0);
    let info = BootInfo {
        magic: MAGIC,
        version: VERSION,
        cpus: vcpus.len() as u64,
        free_start: end.next_multiple_of(0x1000),
        free_end,
        idt: place::IDT,
        ecam: ECAM.base,
        cmdline: place::CMDLINE,
        cmdline_len: cmdline.len() as u64,
        tsc_khz: tsc_khz.into(),
    };
    write(ram, place::BOOT_INFO, info.as_bytes())?;
    for (index, vcpu) in (0_u64..).zip(vcpus) {
        let stack = free_end + 2 * STACK_SIZE * index + STACK_SIZE;
        let cpu = state::Cpu { index, entry, stack, interrupt_stack: stack + STACK_SIZE };
        state::enter(ram, vcpu, &cpu)?;
    }
    Ok(())
}

fn write(ram: &Ram, address: u64, bytes: &[u8]) -> Result<()> {
    ram.write_slice(bytes, GuestAddress(address))
        .map_err(|e| Error::Failure(format!("Failed to write to guest memory at {address:#x}: {e}")))
}

/// Loads the program and returns its entry point and its end.
fn load(ram: &Ram, program: &Path) -> std::result::Result<(u64, u64), String> {
    let mut file = File::open(program).map_err(|e| e.to_string())?;
    let mut kind = [0; 2];
    file.read_exact_at(&mut kind, E_TYPE).map_err(|_| "it is too short to be a program".to_owned())?;
    let loaded = Elf::load(ram, None, &mut file, Some(GuestAddress(HIGH_RAM))).map_err(|e| e.to_string())?;
    if kind != ET_EXEC {
        return Err("it is not linked to fixed addresses: link it with -static -no-pie".to_owned());
    }
    let last = loaded.kernel_end.checked_sub(1).ok_or("it has no segments")?;
    if !ram.address_in_range(GuestAddress(last)) {
        return Err(format!("it ends at {last:#x}, outside memory: give a larger --memory"));
    }
    Ok((loaded.kernel_load.0, loaded.kernel_end))
}

/// Puts one CPU at `entry`, with its stacks at 3 MiB.
#[cfg(test)]
pub(super) fn test_start(ram: &Ram, vcpu: &VcpuFd, entry: u64) {
    let cpu = state::Cpu { index: 0, entry, stack: 0x30_0000, interrupt_stack: 0x31_0000 };
    state::write_page_tables(ram).unwrap();
    state::enter(ram, vcpu, &cpu).unwrap();
}

/// Fills in an entry of the interrupt descriptor table.
#[cfg(test)]
pub(super) fn test_handler(ram: &Ram, vector: u8, handler: u64) {
    let [low, high] = bare_abi::gate(handler);
    let entry = place::IDT + u64::from(vector) * 16;
    write(ram, entry, low.as_bytes()).unwrap();
    write(ram, entry + 8, high.as_bytes()).unwrap();
}
