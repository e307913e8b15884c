//! State of the boot CPU before the first instruction: the 64-bit Linux boot protocol.

use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use device_model::ram::Ram;

use super::layout::{BOOT_PARAMS, BOOT_STACK, GDT, IDT, PAGE_TABLES};
use crate::error::{Error, Result};

/// Protected mode, paging, and the fixed bits real CPUs have set.
pub(super) const CR0_PAGED: u64 = 0x8000_0031;
/// Physical address extension, which long mode needs.
pub(super) const CR4_PAE: u64 = 1 << 5;
/// Long mode enabled and active.
pub(super) const EFER_LONG_MODE: u64 = 1 << 8 | 1 << 10;
/// Reserved, always-set bit of RFLAGS.
pub(super) const RFLAGS_FIXED: u64 = 2;

/// IA32_MISC_ENABLE, and its fast-string bit, which kernels look for.
const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;
/// IA32_MTRR_DEF_TYPE: MTRRs on, everything write-back.
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ENABLED_WRITE_BACK: u64 = 1 << 11 | 6;

/// Page table entry bits: present and writable.
const PRESENT_WRITABLE: u64 = 0x3;
/// Page directory entry bit: a 2 MiB page.
const LARGE: u64 = 0x80;
const PAGE: u64 = 0x1000;
const LARGE_PAGE: u64 = 0x20_0000;
/// Page directories, one for each identity-mapped GiB.
const DIRECTORIES: u64 = 4;

/// A flat descriptor of the global descriptor table.
struct Descriptor {
    selector: u16,
    /// Bits 40 to 55 of the descriptor: type, S, DPL, P and, higher up, L, D and G.
    attributes: u64,
}

/// `__BOOT_CS` and `__BOOT_DS` of the boot protocol: flat, execute/read and read/write.
const CODE: Descriptor = Descriptor { selector: 0x10, attributes: 0xa09b };
const DATA: Descriptor = Descriptor { selector: 0x18, attributes: 0xc093 };
const TASK: Descriptor = Descriptor { selector: 0x20, attributes: 0x808b };

impl Descriptor {
    /// Limit 4 GiB, base 0.
    const fn encode(&self) -> u64 {
        0x000f_0000_0000_ffff | self.attributes << 40
    }

    fn segment(&self) -> kvm_segment {
        let bit = |shift: u64| (self.attributes >> shift & 1) as u8;
        kvm_segment {
            base: 0,
            limit: 0xffff_ffff,
            selector: self.selector,
            type_: (self.attributes & 0xf) as u8,
            s: bit(4),
            dpl: (self.attributes >> 5 & 3) as u8,
            present: bit(7),
            avl: bit(12),
            l: bit(13),
            db: bit(14),
            g: bit(15),
            ..Default::default()
        }
    }
}

/// Writes descriptor and page tables: the first 4 GiB are mapped one to one.
///
/// # Errors
///
/// When RAM does not reach that far.
pub fn write_boot_tables(ram: &Ram) -> Result<()> {
    for descriptor in [CODE, DATA, TASK] {
        put(ram, descriptor.encode(), GDT + u64::from(descriptor.selector))?;
    }
    put(ram, 0, IDT)?;
    write_identity_map(ram, 0)
}

/// Writes page tables that map the first 4 GiB one to one, with `rights` beside present and writable in every entry.
///
/// # Errors
///
/// When RAM does not reach that far.
pub(super) fn write_identity_map(ram: &Ram, rights: u64) -> Result<()> {
    let rights = PRESENT_WRITABLE | rights;
    let pdpt = PAGE_TABLES + PAGE;
    let directories = pdpt + PAGE;
    put(ram, pdpt | rights, PAGE_TABLES)?;
    for index in 0..DIRECTORIES {
        put(ram, (directories + index * PAGE) | rights, pdpt + index * 8)?;
    }
    for index in 0..DIRECTORIES * 512 {
        put(ram, (index * LARGE_PAGE) | rights | LARGE, directories + index * 8)?;
    }
    Ok(())
}

fn put(ram: &Ram, value: u64, address: u64) -> Result<()> {
    ram.write_obj(value.to_le(), GuestAddress(address))
        .map_err(|e| Error::Failure(format!("Failed to write boot tables: {e}")))
}

/// Puts the boot CPU at `entry` in 64-bit mode with the boot parameters' address in RSI.
///
/// # Errors
///
/// When KVM refuses the state.
pub fn enter_linux(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let regs = kvm_regs {
        rip: entry,
        rsi: BOOT_PARAMS,
        rsp: BOOT_STACK,
        rbp: BOOT_STACK,
        rflags: RFLAGS_FIXED,
        ..Default::default()
    };
    vcpu.set_regs(&regs).map_err(|e| Error::kvm("set registers", e))?;
    let mut sregs = vcpu.get_sregs().map_err(|e| Error::kvm("read system registers", e))?;
    long_mode(&mut sregs);
    vcpu.set_sregs(&sregs).map_err(|e| Error::kvm("set system registers", e))
}

fn long_mode(sregs: &mut kvm_sregs) {
    sregs.gdt.base = GDT;
    sregs.gdt.limit = TASK.selector + 15;
    sregs.idt.base = IDT;
    sregs.idt.limit = 7;
    sregs.cs = CODE.segment();
    for segment in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *segment = DATA.segment();
    }
    sregs.tr = TASK.segment();
    sregs.cr3 = PAGE_TABLES;
    sregs.cr4 |= CR4_PAE;
    sregs.cr0 = CR0_PAGED;
    sregs.efer |= EFER_LONG_MODE;
}

/// Gives any CPU the state firmware would leave: FPU, memory types and the local APIC's interrupt pins.
///
/// # Errors
///
/// When KVM refuses the state.
pub fn init_cpu(vcpu: &VcpuFd) -> Result<()> {
    let fpu = kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..Default::default() };
    vcpu.set_fpu(&fpu).map_err(|e| Error::kvm("set FPU state", e))?;
    set_msrs(vcpu)?;
    connect_apic_pins(vcpu)
}

fn set_msrs(vcpu: &VcpuFd) -> Result<()> {
    for (index, data) in
        [(MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRING), (MSR_MTRR_DEF_TYPE, MTRR_ENABLED_WRITE_BACK)]
    {
        let entry = kvm_msr_entry { index, data, ..Default::default() };
        let msrs = Msrs::from_entries(&[entry])
            .map_err(|e| Error::Failure(format!("Failed to lay out an MSR: {e:?}")))?;
        // Zero is KVM's way to say that this CPU has no such register, which is no reason to give up.
        if vcpu.set_msrs(&msrs).map_err(|e| Error::kvm("set an MSR", e))? == 0 {
            tracing::debug!(index, "The host's KVM has no such MSR");
        }
    }
    Ok(())
}

/// The first PIC's output arrives at LINT0, the NMI at LINT1.
fn connect_apic_pins(vcpu: &VcpuFd) -> Result<()> {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const MODE_NMI: u8 = 4;
    const MODE_EXTINT: u8 = 7;
    let mut apic = vcpu.get_lapic().map_err(|e| Error::kvm("read the local APIC", e))?;
    for (register, mode) in [(LVT_LINT0, MODE_EXTINT), (LVT_LINT1, MODE_NMI)] {
        // The delivery mode is in bits 8 to 10, the low bits of the second byte.
        let byte = &mut apic.regs[register + 1];
        *byte = ((*byte as u8) & !7 | mode) as _;
    }
    vcpu.set_lapic(&apic).map_err(|e| Error::kvm("set the local APIC", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_map_covers_four_gigabytes() {
        let ram = Ram::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_boot_tables(&ram).unwrap();
        let read = |address| ram.read_obj::<u64>(GuestAddress(address)).unwrap();
        assert_eq!(read(PAGE_TABLES), 0xa003);
        assert_eq!(read(PAGE_TABLES + PAGE + 24), 0xe003);
        assert_eq!(read(0xe000 + 511 * 8), 0xffe0_0083);
    }

    #[test]
    fn segments_agree_with_the_descriptor_table() {
        assert_eq!(CODE.encode(), 0x00af_9b00_0000_ffff);
        assert_eq!(DATA.encode(), 0x00cf_9300_0000_ffff);
        let code = CODE.segment();
        assert_eq!((code.type_, code.s, code.present, code.l, code.db, code.g), (0xb, 1, 1, 1, 0, 1));
    }
}
