//! Differentiated system description table: PCI host bridge, serial ports, panic port, sleep state.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::sdt::Sdt;
use pci::{CONFIG_ADDRESS, Window, Windows};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes};
use crate::error::{Error, Result};
use crate::machine::layout::{ECAM, PANIC_PORT, PM1_EVENT, SERIAL_IRQS, SERIAL_PORTS};
use crate::machine::power::SLEEP_TYPE_S5;

const HEADER_LENGTH: u32 = 36;
const REVISION: u8 = 6;
const ZERO: u8 = 0;

/// The table.
pub(super) fn build(windows: &Windows) -> Result<Sdt> {
    let mut dsdt = Sdt::new(*b"DSDT", HEADER_LENGTH, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    for device in [host_bridge(windows)?, mainboard()?, serial_port(0), serial_port(1), panic_port()] {
        dsdt.append_slice(&Scope::raw("_SB_".into(), device));
    }
    let s5 = Package::new(vec![&SLEEP_TYPE_S5, &ZERO, &ZERO, &ZERO]);
    dsdt.append_slice(&bytes(&Name::new("_S5_".into(), &s5)));
    Ok(dsdt)
}

fn named(name: &str, value: &dyn Aml) -> Name {
    Name::new(Path::new(name), value)
}

/// The PCI Express host bridge with the addresses it forwards.
fn host_bridge(windows: &Windows) -> Result<Vec<u8>> {
    let (low_first, low_last) = bounds_32(windows.low)?;
    let uncached = AddressSpaceCacheable::NotCacheable;
    let buses = AddressSpace::new_bus_number(0_u16, 0_u16);
    let config = IO::new(CONFIG_ADDRESS, CONFIG_ADDRESS, 1, 8);
    let low = AddressSpace::new_memory(uncached, true, low_first, low_last, None);
    let high_last = windows.high.base + (windows.high.size - 1);
    let high = AddressSpace::new_memory(uncached, true, windows.high.base, high_last, None);
    let resources = ResourceTemplate::new(vec![&buses, &config, &low, &high]);
    Ok(bytes(&Device::new(
        "PCI0".into(),
        vec![
            &named("_HID", &EISAName::new("PNP0A08")),
            &named("_CID", &EISAName::new("PNP0A03")),
            &named("_ADR", &ZERO),
            &named("_SEG", &ZERO),
            &named("_BBN", &ZERO),
            &named("_UID", &ZERO),
            &named("_CRS", &resources),
        ],
    )))
}

/// Addresses that are taken but belong to no device: configuration space and power management.
fn mainboard() -> Result<Vec<u8>> {
    let (first, last) = bounds_32(ECAM)?;
    let ecam = Memory32Fixed::new(true, first, last - first + 1);
    let power = IO::new(PM1_EVENT, PM1_EVENT, 1, 8);
    let resources = ResourceTemplate::new(vec![&ecam, &power]);
    Ok(bytes(&Device::new(
        "MBRD".into(),
        vec![&named("_HID", &EISAName::new("PNP0C02")), &named("_UID", &ZERO), &named("_CRS", &resources)],
    )))
}

fn serial_port(index: usize) -> Vec<u8> {
    let ports = IO::new(SERIAL_PORTS[index], SERIAL_PORTS[index], 1, 8);
    let (consumer, edge, active_low, shared) = (true, true, false, false);
    let interrupt = Interrupt::new(consumer, edge, active_low, shared, SERIAL_IRQS[index]);
    let number = index as u8 + 1;
    bytes(&Device::new(
        Path::new(&format!("COM{number}")),
        vec![
            &named("_HID", &EISAName::new("PNP0501")),
            &named("_UID", &number),
            &named("_CRS", &ResourceTemplate::new(vec![&ports, &interrupt])),
        ],
    ))
}

/// Known to Linux as pvpanic.
fn panic_port() -> Vec<u8> {
    const PRESENT_AND_WORKING: u8 = 0xf;
    let port = IO::new(PANIC_PORT, PANIC_PORT, 1, 1);
    bytes(&Device::new(
        "PEVT".into(),
        vec![
            &named("_HID", &"QEMU0001"),
            &named("_STA", &PRESENT_AND_WORKING),
            &named("_CRS", &ResourceTemplate::new(vec![&port])),
        ],
    ))
}

/// First and last address of a window below 4 GiB.
fn bounds_32(window: Window) -> Result<(u32, u32)> {
    let bound = |address: u64| {
        u32::try_from(address)
            .map_err(|_| Error::Failure(format!("Device memory at {address:#x} is not below 4 GiB")))
    };
    Ok((bound(window.base)?, bound(window.base + (window.size - 1))?))
}
