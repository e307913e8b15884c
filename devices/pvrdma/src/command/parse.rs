//! Requests as types.

use pvrdma_spec::command::{
    CreateBind, CreateCq, CreateMr, CreatePd, CreateQp, CreateSrq, CreateUc, DestroyBind, HandleRequest,
    ModifyQp, ModifySrq, Opcode, QueryPkey, QueryPort, QueryQp, REQUEST_SIZE, RequestHeader,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::CommandError;

/// A request, its layout decoded but none of its values checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    QueryPort(QueryPort),
    QueryPkey(QueryPkey),
    CreatePd(CreatePd),
    DestroyPd(u32),
    CreateMr(CreateMr),
    DestroyMr(u32),
    CreateCq(CreateCq),
    DestroyCq(u32),
    CreateQp(CreateQp),
    ModifyQp(ModifyQp),
    QueryQp(QueryQp),
    DestroyQp(u32),
    CreateUc(CreateUc),
    DestroyUc(u32),
    CreateBind(CreateBind),
    DestroyBind(DestroyBind),
    CreateSrq(CreateSrq),
    ModifySrq(ModifySrq),
    QuerySrq(u32),
    DestroySrq(u32),
}

/// The header of a request.
pub(super) fn header(request: &[u8; REQUEST_SIZE]) -> RequestHeader {
    view(request)
}

/// A copy of the front of a request as a structure that is no longer than the request.
fn view<T: FromBytes + KnownLayout + Immutable>(request: &[u8; REQUEST_SIZE]) -> T {
    const { assert!(size_of::<T>() <= REQUEST_SIZE) };
    T::read_from_prefix(request).map_or_else(|_| T::new_zeroed(), |(value, _)| value)
}

impl TryFrom<&[u8; REQUEST_SIZE]> for Command {
    type Error = CommandError;

    fn try_from(request: &[u8; REQUEST_SIZE]) -> Result<Self, CommandError> {
        let number = header(request).cmd;
        let handle = view::<HandleRequest>(request).handle;
        Ok(match Opcode::from_value(number).ok_or(CommandError::Unknown(number))? {
            Opcode::QueryPort => Self::QueryPort(view(request)),
            Opcode::QueryPkey => Self::QueryPkey(view(request)),
            Opcode::CreatePd => Self::CreatePd(view(request)),
            Opcode::DestroyPd => Self::DestroyPd(handle),
            Opcode::CreateMr => Self::CreateMr(view(request)),
            Opcode::DestroyMr => Self::DestroyMr(handle),
            Opcode::CreateCq => Self::CreateCq(view(request)),
            Opcode::ResizeCq => return Err(CommandError::Unsupported(Opcode::ResizeCq)),
            Opcode::DestroyCq => Self::DestroyCq(handle),
            Opcode::CreateQp => Self::CreateQp(view(request)),
            Opcode::ModifyQp => Self::ModifyQp(view(request)),
            Opcode::QueryQp => Self::QueryQp(view(request)),
            Opcode::DestroyQp => Self::DestroyQp(handle),
            Opcode::CreateUc => Self::CreateUc(view(request)),
            Opcode::DestroyUc => Self::DestroyUc(handle),
            Opcode::CreateBind => Self::CreateBind(view(request)),
            Opcode::DestroyBind => Self::DestroyBind(view(request)),
            Opcode::CreateSrq => Self::CreateSrq(view(request)),
            Opcode::ModifySrq => Self::ModifySrq(view(request)),
            Opcode::QuerySrq => Self::QuerySrq(handle),
            Opcode::DestroySrq => Self::DestroySrq(handle),
        })
    }
}
