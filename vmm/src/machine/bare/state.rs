//! CPU state for ring 3: page tables with user pages, descriptor tables, task state with an interrupt stack.

use bare_abi::CODE_SELECTOR;
use device_model::ram::Ram;
use kvm_bindings::{
    KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE, kvm_dtable, kvm_mp_state, kvm_regs, kvm_segment,
};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::place;
use crate::error::{Error, Result};
use crate::machine::layout::PAGE_TABLES;
use crate::machine::registers::{CR0_PAGED, CR4_PAE, EFER_LONG_MODE, RFLAGS_FIXED, write_identity_map};

/// Selectors of the descriptor table of each CPU.
const DATA_SELECTOR: u16 = 0x1b;
const TASK_SELECTOR: u16 = 0x20;
/// Types of segments: execute/read, read/write, busy task.
const CODE_TYPE: u8 = 0xb;
const DATA_TYPE: u8 = 0x3;
const TASK_TYPE: u8 = 0xb;
/// Descriptors as they lie in memory: flat, ring 3, 64-bit code and data.
const CODE_DESCRIPTOR: u64 = 0x00af_fb00_0000_ffff;
const DATA_DESCRIPTOR: u64 = 0x00cf_f300_0000_ffff;
/// Offset of the task state segment in the CPU's page, and what is in it.
const TASK_OFFSET: u64 = 0x100;
const TASK_LENGTH: u64 = 104 + IO_MAP_LENGTH;
const IO_MAP_OFFSET: u16 = 104;
/// A bit for each port, and a last byte of ones.
const IO_MAP_LENGTH: u64 = 0x2000 + 1;
const TASK_RSP0: u64 = 4;
const TASK_IST1: u64 = 36;
const TASK_IO_MAP_BASE: u64 = 102;
/// Bytes of the descriptor table: four descriptors and the two halves of the task's.
const GDT_LENGTH: u16 = 0x30;
/// Interrupt enable flag, and an I/O privilege level of 3.
const RFLAGS_INTERRUPTS: u64 = 1 << 9;
const RFLAGS_IOPL3: u64 = 3 << 12;
/// CR4: FXSAVE and SSE exceptions, so that compiled code may use SSE.
const CR4_SSE: u64 = 1 << 9 | 1 << 10;
/// CR0: no emulation, monitor coprocessor.
const CR0_MONITOR: u64 = 1 << 1;
/// `PTE_USER`.
const USER: u64 = 1 << 2;
/// Local APIC: the spurious interrupt vector register, with the software enable bit in its second byte.
const APIC_SPURIOUS: usize = 0xf0;

/// Where one CPU starts.
pub(super) struct Cpu {
    pub(super) index: u64,
    pub(super) entry: u64,
    pub(super) stack: u64,
    pub(super) interrupt_stack: u64,
}

/// Maps the first 4 GiB one to one for ring 3.
pub(super) fn write_page_tables(ram: &Ram) -> Result<()> {
    write_identity_map(ram, USER)
}

/// Puts `vcpu` at its entry point.
pub(super) fn enter(ram: &Ram, vcpu: &VcpuFd, cpu: &Cpu) -> Result<()> {
    let page = place::CPU_TABLES + cpu.index * place::CPU_TABLES_SIZE;
    write_tables(ram, page, cpu)?;
    let regs = kvm_regs {
        rip: cpu.entry,
        rdi: place::BOOT_INFO,
        rsi: cpu.index,
        // As if called: the ABI wants RSP + 8 to be a multiple of 16 at a function's first instruction.
        rsp: cpu.stack - 8,
        rflags: RFLAGS_FIXED | RFLAGS_INTERRUPTS | RFLAGS_IOPL3,
        ..Default::default()
    };
    vcpu.set_regs(&regs).map_err(|e| Error::kvm("set registers", e))?;
    set_system_registers(vcpu, page)?;
    enable_apic(vcpu)?;
    let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
    vcpu.set_mp_state(runnable).map_err(|e| Error::kvm("start a CPU", e))
}

/// Halts a CPU with interrupts enabled: it waits in the kernel, for an interrupt or to be kicked.
pub(in crate::machine) fn halt(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    enable_interrupts(vcpu)?;
    vcpu.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_HALTED })
}

/// Lets interrupts in. Where KVM is done in software, ring 3 loses its I/O privilege level, and IRETQ then leaves the
/// interrupt flag as the handler had it: off.
pub(in crate::machine) fn enable_interrupts(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut regs = vcpu.get_regs()?;
    if regs.rflags & RFLAGS_INTERRUPTS == 0 {
        regs.rflags |= RFLAGS_INTERRUPTS | RFLAGS_IOPL3;
        vcpu.set_regs(&regs)?;
    }
    Ok(())
}

fn set_system_registers(vcpu: &VcpuFd, page: u64) -> Result<()> {
    let mut sregs = vcpu.get_sregs().map_err(|e| Error::kvm("read system registers", e))?;
    sregs.gdt = kvm_dtable { base: page, limit: GDT_LENGTH - 1, ..Default::default() };
    sregs.idt = kvm_dtable { base: place::IDT, limit: 0xfff, ..Default::default() };
    sregs.cs = segment(CODE_SELECTOR, CODE_TYPE, true);
    for register in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *register = segment(DATA_SELECTOR, DATA_TYPE, false);
    }
    sregs.tr = kvm_segment {
        base: page + TASK_OFFSET,
        limit: TASK_LENGTH as u32 - 1,
        selector: TASK_SELECTOR,
        type_: TASK_TYPE,
        present: 1,
        ..Default::default()
    };
    sregs.cr3 = PAGE_TABLES;
    sregs.cr4 |= CR4_PAE | CR4_SSE;
    sregs.cr0 = CR0_PAGED | CR0_MONITOR;
    sregs.efer |= EFER_LONG_MODE;
    vcpu.set_sregs(&sregs).map_err(|e| Error::kvm("set system registers", e))
}

fn segment(selector: u16, type_: u8, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 3,
        s: 1,
        g: 1,
        l: code.into(),
        db: (!code).into(),
        ..Default::default()
    }
}

fn write_tables(ram: &Ram, page: u64, cpu: &Cpu) -> Result<()> {
    let put = |value: u64, address: u64| {
        ram.write_obj(value.to_le(), GuestAddress(address))
            .map_err(|e| Error::Failure(format!("Failed to write descriptor tables: {e}")))
    };
    let task = page + TASK_OFFSET;
    put(CODE_DESCRIPTOR, page + u64::from(CODE_SELECTOR & !7))?;
    put(DATA_DESCRIPTOR, page + u64::from(DATA_SELECTOR & !7))?;
    let task_low = (TASK_LENGTH - 1) | (task & 0xff_ffff) << 16 | 0x8b << 40 | (task >> 24 & 0xff) << 56;
    put(task_low, page + u64::from(TASK_SELECTOR))?;
    put(task >> 32, page + u64::from(TASK_SELECTOR) + 8)?;
    put(cpu.interrupt_stack, task + TASK_RSP0)?;
    put(cpu.interrupt_stack, task + TASK_IST1)?;
    // Zeros allow every port. An I/O privilege level of 3 does too, but where KVM is done in software it does not last.
    let failed = |e| Error::Failure(format!("Failed to write the task state: {e}"));
    ram.write_obj(IO_MAP_OFFSET.to_le(), GuestAddress(task + TASK_IO_MAP_BASE)).map_err(failed)?;
    ram.write_obj(0xff_u8, GuestAddress(task + TASK_LENGTH - 1)).map_err(failed)
}

fn enable_apic(vcpu: &VcpuFd) -> Result<()> {
    let mut apic = vcpu.get_lapic().map_err(|e| Error::kvm("read the local APIC", e))?;
    apic.regs[APIC_SPURIOUS] = -1;
    apic.regs[APIC_SPURIOUS + 1] |= 1;
    vcpu.set_lapic(&apic).map_err(|e| Error::kvm("enable the local APIC", e))
}
