//! What CPUID tells the guest: all that KVM can give, with this machine's topology.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm};

use crate::error::{Error, Result};

/// Leaf 1 ECX: running under a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1 ECX: the local APIC timer has the TSC deadline mode. The in-kernel APIC emulates it on every CPU.
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1 EDX: the APIC id fields describe several logical CPUs.
const HTT: u32 = 1 << 28;

/// Leaves that describe topology and are made from scratch.
const EXTENDED_TOPOLOGY: [u32; 2] = [0xb, 0x1f];
/// Address bits when the CPU does not tell.
const DEFAULT_ADDRESS_BITS: u8 = 36;

/// The CPUID of a machine, before it is made one CPU's own.
#[derive(Clone, Debug)]
pub struct CpuTemplate {
    entries: Vec<kvm_cpuid_entry2>,
    cpus: u8,
}

impl CpuTemplate {
    /// What this host's KVM supports, for a machine of `cpus` CPUs.
    ///
    /// # Errors
    ///
    /// When KVM does not tell.
    pub fn new(kvm: &Kvm, cpus: u8) -> Result<Self> {
        let supported = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|e| Error::kvm("learn what CPUID the host supports", e))?;
        let deadline = kvm.check_extension(Cap::TscDeadlineTimer);
        Ok(Self::from_entries(supported.as_slice(), cpus, deadline))
    }

    fn from_entries(supported: &[kvm_cpuid_entry2], cpus: u8, tsc_deadline: bool) -> Self {
        let mut entries: Vec<_> =
            supported.iter().filter(|entry| !EXTENDED_TOPOLOGY.contains(&entry.function)).copied().collect();
        for entry in entries.iter_mut().filter(|entry| entry.function == 1) {
            entry.ecx |= HYPERVISOR;
            if tsc_deadline {
                entry.ecx |= TSC_DEADLINE;
            }
        }
        let max_leaf = entries.iter().find(|entry| entry.function == 0).map_or(0, |entry| entry.eax);
        if max_leaf >= 0xb {
            entries.extend(topology_levels(cpus));
        }
        Self { entries, cpus }
    }

    /// All leaves of the first CPU, to compare them with another host's.
    ///
    /// # Errors
    ///
    /// As [`CpuTemplate::for_cpu`].
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let words = |e: &kvm_cpuid_entry2| [e.function, e.index, e.eax, e.ebx, e.ecx, e.edx];
        Ok(self.for_cpu(0)?.as_slice().iter().flat_map(words).flat_map(u32::to_le_bytes).collect())
    }

    /// Width of guest-physical addresses.
    pub fn address_bits(&self) -> u8 {
        self.entries
            .iter()
            .find(|entry| entry.function == 0x8000_0008)
            .map_or(DEFAULT_ADDRESS_BITS, |entry| entry.eax.to_le_bytes()[0])
    }

    /// CPUID of the CPU with APIC id `apic_id`.
    ///
    /// # Errors
    ///
    /// When there are more leaves than KVM takes.
    pub fn for_cpu(&self, apic_id: u8) -> Result<CpuId> {
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            personalise(entry, apic_id, self.cpus);
        }
        CpuId::from_entries(&entries)
            .map_err(|e| Error::Failure(format!("Failed to lay out CPUID leaves: {e:?}")))
    }
}

/// Leaf 0xb: every CPU is a core with one thread, and all cores are in one package.
fn topology_levels(cpus: u8) -> [kvm_cpuid_entry2; 3] {
    const INVALID: u32 = 0;
    const SMT: u32 = 1;
    const CORE: u32 = 2;
    let level = |index: u32, kind: u32, shift: u32, count: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: count,
        ecx: kind << 8 | index,
        ..Default::default()
    };
    [level(0, SMT, 0, 1), level(1, CORE, apic_id_bits(cpus), cpus.into()), level(2, INVALID, 0, 0)]
}

/// Bits of an APIC id that tell the CPUs of the package apart.
fn apic_id_bits(cpus: u8) -> u32 {
    u32::from(cpus).next_power_of_two().trailing_zeros()
}

fn personalise(entry: &mut kvm_cpuid_entry2, apic_id: u8, cpus: u8) {
    let last = u32::from(cpus) - 1;
    let apic_id = u32::from(apic_id);
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0xffff | u32::from(cpus) << 16 | apic_id << 24;
            if cpus > 1 {
                entry.edx |= HTT;
            }
        }
        // Deterministic cache parameters (Intel): no cache is shared, all cores are in the package.
        4 if entry.eax & 0x1f != 0 => entry.eax = entry.eax & 0x3fff | last.min(0x3f) << 26,
        0xb => entry.edx = apic_id,
        // Size identifiers (AMD).
        0x8000_0008 => entry.ecx = entry.ecx & !0xf0ff | last | apic_id_bits(cpus) << 12,
        // Cache parameters (AMD): no cache is shared.
        0x8000_001d if entry.eax & 0x1f != 0 => entry.eax &= 0x3fff,
        // Extended APIC id, core and node (AMD): one thread a core, one node.
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (apic_id, apic_id, 0),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, ..Default::default() }
    }

    fn template(cpus: u8) -> CpuTemplate {
        let entries = [
            kvm_cpuid_entry2 { eax: 0x1f, ..leaf(0) },
            kvm_cpuid_entry2 { ebx: 0x0102_0800, ..leaf(1) },
            kvm_cpuid_entry2 { eax: 0xffff_ff21, ..leaf(4) },
            kvm_cpuid_entry2 { edx: 0xaa, ..leaf(0xb) },
            kvm_cpuid_entry2 { edx: 0xaa, ..leaf(0x1f) },
            kvm_cpuid_entry2 { eax: 0x3028, ecx: 0x7, ..leaf(0x8000_0008) },
        ];
        CpuTemplate::from_entries(&entries, cpus, true)
    }

    fn find(cpu: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        let found = cpu.as_slice().iter().find(|entry| (entry.function, entry.index) == (function, index));
        *found.unwrap()
    }

    #[test]
    fn every_topology_leaf_tells_the_same_story() {
        let cpu = template(3).for_cpu(2).unwrap();
        let one = find(&cpu, 1, 0);
        assert_eq!((one.ebx >> 24, one.ebx >> 16 & 0xff, one.ebx & 0xffff), (2, 3, 0x0800));
        assert_eq!(one.ecx, HYPERVISOR | TSC_DEADLINE);
        assert_eq!(one.edx & HTT, HTT);
        let core = find(&cpu, 0xb, 1);
        assert_eq!((core.eax, core.ebx, core.ecx, core.edx), (2, 3, 0x201, 2));
        assert_eq!(find(&cpu, 4, 0).eax, 2 << 26 | 0x3f21);
        assert_eq!(find(&cpu, 0x8000_0008, 0).ecx, 2 << 12 | 2);
        assert!(cpu.as_slice().iter().all(|entry| entry.function != 0x1f));
    }

    #[test]
    fn a_single_cpu_is_not_multithreaded() {
        let cpu = template(1).for_cpu(0).unwrap();
        assert_eq!(find(&cpu, 1, 0).edx & HTT, 0);
        assert_eq!(find(&cpu, 0xb, 1).eax, 0);
    }

    #[test]
    fn address_width_is_the_cpus() {
        assert_eq!(template(1).address_bits(), 0x28);
        assert_eq!(CpuTemplate::from_entries(&[], 1, false).address_bits(), DEFAULT_ADDRESS_BITS);
    }
}
