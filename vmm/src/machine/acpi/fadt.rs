//! Fixed ACPI description table: the power management registers and what legacy hardware is not there.

use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::machine::layout::{PM1_CONTROL, PM1_EVENT, RESET_CONTROL, RESET_VALUE, SCI_IRQ};

/// IA-PC boot architecture flags (ACPI specification, "IA-PC Boot Architecture Flags").
const LEGACY_DEVICES: u16 = 1;
const VGA_NOT_PRESENT: u16 = 1 << 2;
const NO_ASPM: u16 = 1 << 4;
const CMOS_RTC_NOT_PRESENT: u16 = 1 << 5;

const PM1_EVENT_LENGTH: u8 = 4;
const PM1_CONTROL_LENGTH: u8 = 2;

/// The table; a fixed power button, no sleep button, no timer.
pub(super) fn build(facs: u64, dsdt: u64) -> FADT {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .firmware_ctrl_64(facs)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup);
    fadt.sci_int = (SCI_IRQ as u16).into();
    fadt.pm1a_evt_blk = u32::from(PM1_EVENT).into();
    fadt.pm1_evt_len = PM1_EVENT_LENGTH;
    fadt.x_pm1a_evt_blk = port(PM1_EVENT, PM1_EVENT_LENGTH, AccessSize::WordAccess);
    fadt.pm1a_cnt_blk = u32::from(PM1_CONTROL).into();
    fadt.pm1_cnt_len = PM1_CONTROL_LENGTH;
    fadt.x_pm1a_cnt_blk = port(PM1_CONTROL, PM1_CONTROL_LENGTH, AccessSize::WordAccess);
    fadt.reset_reg = port(RESET_CONTROL, 1, AccessSize::ByteAccess);
    fadt.reset_value = RESET_VALUE;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | VGA_NOT_PRESENT | NO_ASPM | CMOS_RTC_NOT_PRESENT).into();
    fadt.finalize()
}

fn port(port: u16, length: u8, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, length * 8, 0, access, port.into())
}
