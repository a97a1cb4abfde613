//! Which instruction set the kernels run on, chosen once at run time.

use std::sync::OnceLock;

/// Instruction sets with a compiled version of every kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the compiler's baseline offers; fused multiply-adds by library call.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The best instruction set of this machine; `DELTAMUX_ISA=portable|avx2|avx512` lowers it (results are the same).
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let wanted = std::env::var("DELTAMUX_ISA").unwrap_or_default();
        let best = detect();
        match (wanted.as_str(), best) {
            ("portable", _) => Isa::Portable,
            ("avx2", Isa::Avx512) => Isa::Avx2,
            _ => best,
        }
    })
}

/// Whether byte dot products run on AVX-512 VNNI: [`isa`] is [`Isa::Avx512`] and the machine has the instructions.
pub fn vnni() -> bool {
    static VNNI: OnceLock<bool> = OnceLock::new();
    *VNNI.get_or_init(|| isa() == Isa::Avx512 && detect_vnni())
}

/// Whether the processor multiplies pairs of bf16 (AVX512_BF16) and `DELTAMUX_ISA` does not forbid it.
pub fn bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| isa() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instructions in use, for reports: `avx512+vnni+bf16`, `avx2`, `portable`.
pub fn name() -> String {
    let base = match isa() {
        Isa::Portable => "portable",
        Isa::Avx2 => "avx2",
        Isa::Avx512 => "avx512",
    };
    let parts = [(vnni(), "+vnni"), (bf16_dot(), "+bf16")];
    let extensions = parts.iter().filter(|part| part.0).map(|part| part.1);
    std::iter::once(base).chain(extensions).collect()
}

/// Vector registers of the instruction set in use.
pub(crate) fn registers() -> usize {
    match isa() {
        Isa::Avx512 => 32,
        Isa::Avx2 | Isa::Portable => 16,
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_vnni() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Defines a function once and compiles it for every instruction set.
///
/// The body is plain Rust over fixed-size lanes whose multiply-adds are all explicit (`mul_add`), so that every version
/// gives the same bits: the compiler may neither fuse nor reorder floating-point operations by itself.
///
/// `fn name<registers R>(…)` gives the body a constant `R`, the number of vector registers, by which it may choose how
/// much it computes at once. Constant parameters of the function follow: `fn name<registers R, const N: usize>(…)`.
macro_rules! for_each_isa {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$(const $g:ident: $gt:ty),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $crate::isa::for_each_isa! {
            $(#[$meta])*
            $vis fn $name<registers _REGISTERS $($(, const $g: $gt)+)?>($($arg: $ty),*) $(-> $ret)? $body
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<registers $registers:ident $(, const $g:ident: $gt:ty)*>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn generic<const $registers: usize, $(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx512<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
                    generic::<32, $($g),*>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments)]
                fn avx2<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
                    generic::<16, $($g),*>($($arg),*)
                }
                match $crate::isa::isa() {
                    // SAFETY: `isa` returned this set only after detecting every feature that the function enables.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512::<$($g),*>($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2::<$($g),*>($($arg),*) },
                    $crate::isa::Isa::Portable => {}
                }
            }
            generic::<16, $($g),*>($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;
