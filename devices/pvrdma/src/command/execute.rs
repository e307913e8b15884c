//! Dispatch and answers.

use device_model::guest_warn;
use pvrdma_spec::command::{Opcode, REQUEST_SIZE, RESPONSE_FLAG, RESPONSE_SIZE, ResponseHeader};
use pvrdma_spec::register::Vector;
use zerocopy::{Immutable, IntoBytes};

use super::{Command, CommandError, Errno, parse};
use crate::state::Core;

/// A response, header included; the rest is zeros.
pub(super) struct Response([u8; RESPONSE_SIZE]);

impl Response {
    /// The response of a command that creates nothing: a header, never read.
    fn empty(header: ResponseHeader) -> Self {
        Self::new(&header)
    }

    /// A response of which `body`, with its header, is the front.
    pub(super) fn new<T: IntoBytes + Immutable>(body: &T) -> Self {
        const { assert!(size_of::<T>() <= RESPONSE_SIZE) };
        let mut bytes = [0; RESPONSE_SIZE];
        for (to, from) in bytes.iter_mut().zip(body.as_bytes()) {
            *to = *from;
        }
        Self(bytes)
    }
}

impl Core {
    /// Handles a write to `REQUEST`.
    pub(crate) fn request(&mut self, value: u32) {
        match self.run_request(value) {
            Ok(answered) => {
                self.error = 0;
                if answered {
                    self.irq.raise(Vector::Response);
                }
            }
            Err(errno) => self.error = errno as u32,
        }
    }

    /// Reads, executes and answers a request; says whether there is a response.
    fn run_request(&mut self, value: u32) -> Result<bool, Errno> {
        let (command_slot, response_slot) = match self.phase.active() {
            Some(region) if value == 0 && self.irq.bus_master() => {
                (region.command_slot, region.response_slot)
            }
            _ => {
                self.counters.bad_requests += 1;
                return Err(if value == 0 { Errno::NotReady } else { Errno::Invalid });
            }
        };
        let mut request = [0; REQUEST_SIZE];
        self.ram.read(command_slot, &mut request).map_err(|_| Errno::Fault)?;
        let response = self.answer(&request)?;
        if let Some(Response(bytes)) = &response {
            self.ram.write(response_slot, bytes).map_err(|_| Errno::Fault)?;
        }
        Ok(response.is_some())
    }

    /// Executes a request. `None` is success without a response.
    fn answer(&mut self, request: &[u8; REQUEST_SIZE]) -> Result<Option<Response>, Errno> {
        let asked = parse::header(request);
        let mut header = ResponseHeader {
            response: asked.response,
            ack: asked.cmd | RESPONSE_FLAG,
            err: 0,
            reserved: [0; 3],
        };
        let result = Command::try_from(request).and_then(|command| self.execute(&command, header));
        let opcode = Opcode::from_value(asked.cmd);
        self.count(opcode, result.is_ok());
        match result {
            Ok(response) => Ok(opcode.is_some_and(Opcode::has_response).then_some(response)),
            Err(error) => {
                guest_warn!(command = asked.cmd, %error, "command failed");
                if opcode != Some(Opcode::ModifyQp) {
                    return Err(error.errno());
                }
                // The only command whose driver looks for an error in the response.
                header.err = error.errno() as u8;
                Ok(Some(Response::new(&header)))
            }
        }
    }

    fn count(&mut self, opcode: Option<Opcode>, succeeded: bool) {
        let Some(counters) = opcode.and_then(|opcode| self.counters.commands.get_mut(opcode as usize)) else {
            self.counters.bad_requests += 1;
            return;
        };
        if succeeded {
            counters.succeeded += 1;
        } else {
            counters.failed += 1;
        }
    }

    fn execute(&mut self, command: &Command, header: ResponseHeader) -> Result<Response, CommandError> {
        let done = |()| Response::empty(header);
        match command {
            Command::QueryPort(request) => self.query_port(request, header).map(|r| Response::new(&r)),
            Command::QueryPkey(request) => self.query_pkey(request, header).map(|r| Response::new(&r)),
            Command::CreatePd(request) => self.create_pd(request, header).map(|r| Response::new(&r)),
            Command::DestroyPd(handle) => self.destroy_pd(*handle).map(done),
            Command::CreateMr(request) => self.create_mr(request, header).map(|r| Response::new(&r)),
            Command::DestroyMr(handle) => self.destroy_mr(*handle).map(done),
            Command::CreateCq(request) => self.create_cq(request, header).map(|r| Response::new(&r)),
            Command::DestroyCq(handle) => self.destroy_cq(*handle).map(done),
            Command::CreateQp(request) => self.create_qp(request, header),
            Command::ModifyQp(request) => self.modify_qp(request).map(done),
            Command::QueryQp(request) => self.query_qp(request, header).map(|r| Response::new(&r)),
            Command::DestroyQp(handle) => self.destroy_qp(*handle).map(done),
            Command::CreateUc(request) => self.create_uc(request, header).map(|r| Response::new(&r)),
            Command::DestroyUc(handle) => self.destroy_uc(*handle).map(done),
            Command::CreateBind(request) => self.create_bind(request).map(done),
            Command::DestroyBind(request) => self.destroy_bind(request).map(done),
            Command::CreateSrq(request) => self.create_srq(request, header).map(|r| Response::new(&r)),
            Command::ModifySrq(request) => self.modify_srq(request).map(done),
            Command::QuerySrq(handle) => self.query_srq(*handle, header).map(|r| Response::new(&r)),
            Command::DestroySrq(handle) => self.destroy_srq(*handle).map(done),
        }
    }
}
