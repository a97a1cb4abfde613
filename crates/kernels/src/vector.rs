//! Sixteen f32 lanes in registers.
//!
//! Inner loops that keep dozens of accumulators in registers are written over [`Vector`], because the compiler keeps
//! plain arrays there only while their loops are small enough to unroll. Every operation gives the same bits on every
//! instruction set.

use crate::lanes::{LANES, Lanes};

/// Sixteen f32 lanes of one instruction set.
///
/// A vector type is used only inside of functions that [`for_each_vector`] compiles for its instruction set and calls
/// after detecting it; that is what makes the intrinsics in these methods sound.
pub(crate) trait Vector: Copy {
    /// Vectors that the register file holds.
    const REGISTERS: usize;

    /// The same value in every lane.
    fn splat(value: f32) -> Self;

    /// Sixteen values.
    fn load(values: &Lanes) -> Self;

    /// Writes the lanes.
    fn store(self, out: &mut Lanes);

    /// `self + a · b`, fused.
    fn fma(self, a: Self, b: Self) -> Self;

    /// The low halves of sixteen words, as bf16.
    fn bf16_low(words: &[u32; LANES]) -> Self;

    /// The high halves of sixteen words, as bf16.
    fn bf16_high(words: &[u32; LANES]) -> Self;

    /// `self · a`.
    fn mul(self, a: Self) -> Self;

    /// The larger of both in each lane; where one is not a number, `a`.
    fn max(self, a: Self) -> Self;

    /// Sixteen f16 values, exact; what is not a number stays so.
    fn f16(halves: &[u16; LANES]) -> Self;

    /// Rounds finite values to the nearest f16, ties to even.
    fn to_f16(self) -> [u16; LANES];
}

impl Vector for Lanes {
    const REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    fn load(values: &Lanes) -> Self {
        *values
    }

    #[inline(always)]
    fn store(self, out: &mut Lanes) {
        *out = self;
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|j| a[j].mul_add(b[j], self[j]))
    }

    #[inline(always)]
    fn bf16_low(words: &[u32; LANES]) -> Self {
        words.map(|w| f32::from_bits(w << 16))
    }

    #[inline(always)]
    fn bf16_high(words: &[u32; LANES]) -> Self {
        words.map(|w| f32::from_bits(w & 0xffff_0000))
    }

    #[inline(always)]
    fn mul(self, a: Self) -> Self {
        std::array::from_fn(|j| self[j] * a[j])
    }

    #[inline(always)]
    fn max(self, a: Self) -> Self {
        std::array::from_fn(|j| if self[j] > a[j] { self[j] } else { a[j] })
    }

    #[inline(always)]
    fn f16(halves: &[u16; LANES]) -> Self {
        halves.map(|half| {
            let bits = u32::from(half);
            // Exponent and mantissa moved to their f32 places give the value times 2^-112; the product restores it and
            // makes subnormal halves right too.
            let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
            let infinite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
            f32::from_bits(magnitude.to_bits() | infinite | (bits & 0x8000) << 16)
        })
    }

    #[inline(always)]
    fn to_f16(self) -> [u16; LANES] {
        self.map(|value| half::f16::from_f32(value).to_bits())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes, Vector};
    use std::arch::x86_64::*;

    impl Vector for __m512 {
        const REGISTERS: usize = 32;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: AVX-512 F is there, as the trait says; so below.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn load(values: &Lanes) -> Self {
            // SAFETY: the reference covers sixteen floats.
            unsafe { _mm512_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, out: &mut Lanes) {
            // SAFETY: the reference covers sixteen floats.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), self) }
        }

        #[inline(always)]
        fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }

        #[inline(always)]
        fn bf16_low(words: &[u32; LANES]) -> Self {
            // SAFETY: the reference covers sixteen words.
            unsafe {
                let words = _mm512_loadu_si512(words.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
            }
        }

        #[inline(always)]
        fn bf16_high(words: &[u32; LANES]) -> Self {
            // SAFETY: the reference covers sixteen words.
            unsafe {
                let words = _mm512_loadu_si512(words.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
            }
        }

        #[inline(always)]
        fn mul(self, a: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { _mm512_mul_ps(self, a) }
        }

        #[inline(always)]
        fn max(self, a: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { _mm512_max_ps(self, a) }
        }

        #[inline(always)]
        fn f16(halves: &[u16; LANES]) -> Self {
            // SAFETY: the reference covers sixteen halves.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())) }
        }

        #[inline(always)]
        fn to_f16(self) -> [u16; LANES] {
            // SAFETY: as in `splat`; sixteen halves are 256 bits.
            unsafe { std::mem::transmute(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
        }
    }

    /// Two vectors of eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256, __m256);

    impl Vector for Avx2 {
        const REGISTERS: usize = 8;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: AVX2 and FMA are there, as the trait says; so below.
            unsafe {
                let v = _mm256_set1_ps(value);
                Self(v, v)
            }
        }

        #[inline(always)]
        fn load(values: &Lanes) -> Self {
            // SAFETY: the reference covers sixteen floats.
            unsafe {
                let p = values.as_ptr();
                Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)))
            }
        }

        #[inline(always)]
        fn store(self, out: &mut Lanes) {
            // SAFETY: the reference covers sixteen floats.
            unsafe {
                let p = out.as_mut_ptr();
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
        }

        #[inline(always)]
        fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }

        #[inline(always)]
        fn bf16_low(words: &[u32; LANES]) -> Self {
            // SAFETY: the reference covers sixteen words.
            unsafe {
                let p = words.as_ptr();
                let widen = |p: *const u32| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(p.cast())));
                Self(widen(p), widen(p.add(8)))
            }
        }

        #[inline(always)]
        fn bf16_high(words: &[u32; LANES]) -> Self {
            // SAFETY: the reference covers sixteen words.
            unsafe {
                let mut p = words.as_ptr();
                // The words are read again instead of kept: with them a tile's registers would not suffice, and an
                // accumulator on the stack makes the inner loop half as fast.
                std::arch::asm!("/* {0} */", inout(reg) p, options(readonly, nostack, preserves_flags));
                let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                let widen = |p: *const u32| _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p.cast()), mask));
                Self(widen(p), widen(p.add(8)))
            }
        }

        #[inline(always)]
        fn mul(self, a: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { Self(_mm256_mul_ps(self.0, a.0), _mm256_mul_ps(self.1, a.1)) }
        }

        #[inline(always)]
        fn max(self, a: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { Self(_mm256_max_ps(self.0, a.0), _mm256_max_ps(self.1, a.1)) }
        }

        #[inline(always)]
        fn f16(halves: &[u16; LANES]) -> Self {
            // SAFETY: F16C is there; the reference covers sixteen halves.
            unsafe {
                let p = halves.as_ptr();
                let widen = |p: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
                Self(widen(p), widen(p.add(8)))
            }
        }

        #[inline(always)]
        fn to_f16(self) -> [u16; LANES] {
            // SAFETY: F16C is there; twice eight halves are 256 bits.
            unsafe {
                std::mem::transmute([
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1),
                ])
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;

/// Asks for the cache line of an address ahead of its use, into the second-level cache: in the first it would take the
/// place of what is in use. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could observe and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Defines a function over a [`Vector`] type and compiles it for every instruction set:
/// `fn name<vector V>(…)`, further constant parameters after it.
macro_rules! for_each_vector {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<vector $v:ident $(, const $g:ident: $gt:ty)*>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn generic<$v: $crate::vector::Vector, $(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
                    generic::<std::arch::x86_64::__m512, $($g),*>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2<$(const $g: $gt),*>($($arg: $ty),*) $(-> $ret)? {
                    generic::<$crate::vector::Avx2, $($g),*>($($arg),*)
                }
                match $crate::isa::isa() {
                    // SAFETY: `isa` returned this set only after detecting every feature that the function enables.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512::<$($g),*>($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2::<$($g),*>($($arg),*) },
                    $crate::isa::Isa::Portable => {}
                }
            }
            generic::<$crate::lanes::Lanes, $($g),*>($($arg),*)
        }
    };
}
pub(crate) use for_each_vector;

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    for_each_vector! {
        fn widened<vector V>(halves: &[u16; LANES]) -> Lanes {
            let mut out = [0.0; LANES];
            V::f16(halves).store(&mut out);
            out
        }
    }

    for_each_vector! {
        fn narrowed<vector V>(values: &Lanes) -> [u16; LANES] {
            V::load(values).to_f16()
        }
    }

    #[test]
    fn every_half_widens_exactly_and_narrows_to_itself() {
        for first in (0..=u16::MAX).step_by(LANES) {
            let halves: [u16; LANES] = std::array::from_fn(|j| first + j as u16);
            let narrowed = narrowed(&halves.map(|half| f16::from_bits(half).to_f32()));
            let wide = [widened(&halves), <Lanes as Vector>::f16(&halves)];
            for (j, half) in halves.map(f16::from_bits).into_iter().enumerate() {
                if half.is_nan() {
                    assert!(wide[0][j].is_nan() && wide[1][j].is_nan() && f16::from_bits(narrowed[j]).is_nan());
                } else {
                    assert_eq!(wide.map(|w| w[j].to_bits()), [half.to_f32().to_bits(); 2]);
                    assert_eq!(narrowed[j], half.to_bits());
                }
            }
        }
    }

    #[test]
    fn narrowing_rounds_as_the_scalar_twin() {
        for i in 0..4096 {
            let values: Lanes = std::array::from_fn(|j| (i as f32 - 2048.0) * 1.000_3f32.powi(j as i32 * 97) / 7.0);
            assert_eq!(narrowed(&values), values.map(|v| f16::from_f32(v).to_bits()));
        }
    }
}
