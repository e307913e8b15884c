//! A handful of x86-64 instructions, enough for tiny guests.

/// Code under construction.
#[derive(Clone, Default)]
pub struct Asm(Vec<u8>);

/// A place in the code.
#[derive(Clone, Copy)]
pub struct Label(usize);

/// A jump whose target is not known yet.
#[must_use]
pub struct Forward(usize);

#[allow(dead_code)]
impl Asm {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn code(self) -> Vec<u8> {
        self.0
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// OUT of a byte.
    pub fn out8(self, port: u16, value: u8) -> Self {
        self.raw(&[0xb0, value]).port(port).raw(&[0xee])
    }

    /// OUT of a word.
    pub fn out16(self, port: u16, value: u16) -> Self {
        self.raw(&[0x66, 0xb8]).raw(&value.to_le_bytes()).port(port).raw(&[0x66, 0xef])
    }

    /// OUT of a double word.
    pub fn out32(self, port: u16, value: u32) -> Self {
        self.raw(&[0xb8]).raw(&value.to_le_bytes()).port(port).raw(&[0xef])
    }

    /// OUT of AL.
    pub fn out_al(self, port: u16) -> Self {
        self.port(port).raw(&[0xee])
    }

    /// IN to AL.
    pub fn in_al(self, port: u16) -> Self {
        self.port(port).raw(&[0xec])
    }

    /// A store of a double word.
    pub fn store32(self, address: u64, value: u32) -> Self {
        let value = value.to_le_bytes();
        self.raw(&[0xb8]).raw(&value).raw(&[0x48, 0xbb]).raw(&address.to_le_bytes()).raw(&[0x89, 0x03])
    }

    /// Compares AL.
    pub fn compare_al(self, value: u8) -> Self {
        self.raw(&[0x3c, value])
    }

    /// Ands AL for its flags.
    pub fn test_al(self, value: u8) -> Self {
        self.raw(&[0xa8, value])
    }

    /// Writes `text` to COM1.
    pub fn print(self, text: &str) -> Self {
        text.bytes().fold(self, |asm, byte| asm.out8(0x3f8, byte))
    }

    /// Ends a bare guest.
    pub fn exit(self, status: u32) -> Self {
        self.out32(0x518, status)
    }

    /// Returns from an interrupt.
    pub fn interrupt_return(self) -> Self {
        self.raw(&[0x48, 0xcf])
    }

    pub fn here(&self) -> Label {
        Label(self.0.len())
    }

    /// Jumps back.
    pub fn jump(mut self, to: Label) -> Self {
        let distance = to.0 as i64 - (self.0.len() as i64 + 2);
        self.0.extend([0xeb, i8::try_from(distance).expect("a short jump") as u8]);
        self
    }

    /// Jumps forward if the last result was zero or equal.
    pub fn jump_if_zero(&mut self) -> Forward {
        self.0.extend([0x74, 0]);
        Forward(self.0.len())
    }

    /// Makes `jump` arrive here.
    pub fn land(&mut self, jump: Forward) {
        let distance = self.0.len() - jump.0;
        self.0[jump.0 - 1] = i8::try_from(distance).expect("a short jump") as u8;
    }

    fn port(self, port: u16) -> Self {
        self.raw(&[0x66, 0xba]).raw(&port.to_le_bytes())
    }
}
