//! The registers that unwinding starts from.

/// The instruction, and what unwinding needs of the registers.
pub(crate) struct Registers {
    pub(crate) instruction: u64,
    pub(crate) stack: u64,
    pub(crate) unwind: UnwindRegs,
}

#[cfg(target_arch = "x86_64")]
pub(crate) use framehop::x86_64::UnwindRegsX86_64 as UnwindRegs;

#[cfg(target_arch = "aarch64")]
pub(crate) use framehop::aarch64::UnwindRegsAarch64 as UnwindRegs;

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// Those of the code that a signal has interrupted.
    pub(crate) fn interrupted(context: &libc::ucontext_t) -> Self {
        let register = |number: libc::c_int| {
            usize::try_from(number)
                .ok()
                .and_then(|number| context.uc_mcontext.gregs.get(number))
                .map_or(0, |r| *r as u64)
        };
        let (instruction, stack) = (register(libc::REG_RIP), register(libc::REG_RSP));
        Self { instruction, stack, unwind: UnwindRegs::new(instruction, stack, register(libc::REG_RBP)) }
    }

    /// Those of the caller.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let (instruction, stack, frame): (u64, u64, u64);
        // SAFETY: three registers are read.
        unsafe {
            std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) instruction, out(reg) stack, out(reg) frame,
                options(nomem, nostack, preserves_flags));
        }
        Self { instruction, stack, unwind: UnwindRegs::new(instruction, stack, frame) }
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// Those of the code that a signal has interrupted.
    pub(crate) fn interrupted(context: &libc::ucontext_t) -> Self {
        let machine = &context.uc_mcontext;
        let [frame, link] = [machine.regs[29], machine.regs[30]];
        Self { instruction: machine.pc, stack: machine.sp, unwind: UnwindRegs::new(link, machine.sp, frame) }
    }

    /// Those of the caller.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let (instruction, stack, frame, link): (u64, u64, u64, u64);
        // SAFETY: four registers are read.
        unsafe {
            std::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", "mov {}, x30", out(reg) instruction, out(reg) stack,
                out(reg) frame, out(reg) link, options(nomem, nostack, preserves_flags));
        }
        Self { instruction, stack, unwind: UnwindRegs::new(link, stack, frame) }
    }
}
