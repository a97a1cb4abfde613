//! How the memory is divided: weights of the base, resident variants, KV pages.

use deltamux_model::backend::PAGE_TOKENS;

use crate::kv::pages_for;
use crate::request::Mode;

/// Share of the available memory that is used when no limit is given.
const AVAILABLE_SHARE: f64 = 0.9;
/// KV tokens that are enough for a useful number of sequences when no limit is given.
const DEFAULT_KV_TOKENS: usize = 32 * 1024;

/// What is known when memory is divided.
#[derive(Debug, Clone)]
pub(crate) struct Demands {
    /// Delta or swap.
    pub(crate) mode: Mode,
    /// `--memory`.
    pub(crate) memory: Option<u64>,
    /// `--variant-memory`.
    pub(crate) variant_memory: Option<u64>,
    /// `--kv-memory`.
    pub(crate) kv_memory: Option<u64>,
    /// `--max-model-len`.
    pub(crate) max_model_len: Option<usize>,
    /// The model's longest sequence.
    pub(crate) model_len: usize,
    /// `--max-seqs`.
    pub(crate) max_seqs: usize,
    /// Bytes of the base's weights.
    pub(crate) base_bytes: u64,
    /// Bytes of a KV page.
    pub(crate) page_bytes: u64,
    /// Bytes of the largest registered variant.
    pub(crate) largest_variant: u64,
    /// Bytes that this machine has left, the base not counted as taken; `None` when unknown.
    pub(crate) available: Option<u64>,
}

/// The parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Division {
    /// Longest sequence.
    pub(crate) max_model_len: usize,
    /// KV pages.
    pub(crate) kv_pages: usize,
    /// Bytes for resident variants (swap mode: for full models, the base among them).
    pub(crate) variant_bytes: u64,
}

/// Divides the memory, or says which limits contradict each other.
pub(crate) fn divide(d: &Demands) -> Result<Division, String> {
    let mut max_model_len = d.max_model_len.unwrap_or(d.model_len);
    if max_model_len == 0 {
        return Err("--max-model-len is 0; it must be at least 1".to_owned());
    }
    if max_model_len > d.model_len {
        return Err(format!(
            "--max-model-len is {max_model_len}, but the model was made for {} tokens (max_position_embeddings); lower --max-model-len",
            d.model_len
        ));
    }
    // What is always in memory, and what the variants' part must hold at least.
    let (fixed, least_variants) = match d.mode {
        Mode::Delta => (d.base_bytes, d.variant_memory.unwrap_or(d.largest_variant)),
        Mode::Swap => (0, d.variant_memory.unwrap_or(d.base_bytes.max(d.largest_variant))),
    };
    if let (Mode::Swap, Some(bytes)) = (d.mode, d.variant_memory)
        && bytes < d.base_bytes
    {
        return Err(format!(
            "--variant-memory is {}, but the base alone takes {} in --mode swap; raise --variant-memory",
            human(bytes),
            human(d.base_bytes)
        ));
    }
    let available = d
        .available
        .map_or(u64::MAX / 2, |bytes| (bytes as f64 * AVAILABLE_SHARE) as u64);
    if let (Some(memory), Some(left)) = (d.memory, d.available)
        && memory > left
    {
        return Err(format!(
            "--memory is {}, but this machine has {} left; lower --memory",
            human(memory),
            human(left)
        ));
    }
    let total = d.memory.unwrap_or(available);
    let one_sequence = |len: usize| (pages_for(len) as u64).saturating_mul(d.page_bytes);

    let kv_bytes = match d.kv_memory {
        Some(bytes) if bytes < one_sequence(max_model_len) => {
            return Err(format!(
                "--kv-memory is {}, which holds {} tokens, but --max-model-len is {max_model_len} and one such sequence takes {}; raise --kv-memory or lower --max-model-len",
                human(bytes),
                bytes / d.page_bytes * PAGE_TOKENS as u64,
                human(one_sequence(max_model_len))
            ));
        }
        Some(bytes)
            if d.available
                .is_some_and(|available| bytes.saturating_add(fixed) > available) =>
        {
            return Err(format!(
                "--kv-memory is {}, but this machine has {} left beside the base; lower --kv-memory",
                human(bytes),
                human(d.available.unwrap_or(0).saturating_sub(fixed))
            ));
        }
        Some(bytes) => bytes,
        None => {
            let room = total.saturating_sub(fixed).saturating_sub(least_variants);
            if room < one_sequence(max_model_len) {
                let fits = room / d.page_bytes * PAGE_TOKENS as u64;
                let flag = if d.memory.is_some() {
                    "--memory"
                } else {
                    "the available memory"
                };
                if d.max_model_len.is_some() || fits < PAGE_TOKENS as u64 {
                    return Err(format!(
                        "{flag} is {}, which leaves {} for KV pages, but one sequence of --max-model-len {max_model_len} takes {}; raise --memory or lower --max-model-len",
                        human(total),
                        human(room),
                        human(one_sequence(max_model_len))
                    ));
                }
                max_model_len = usize::try_from(fits).unwrap_or(usize::MAX).min(max_model_len);
                tracing::warn!(
                    "{flag} leaves KV pages for {max_model_len} tokens only: the longest sequence is {max_model_len} tokens"
                );
            }
            let useful = d
                .max_seqs
                .saturating_mul(pages_for(max_model_len))
                .min((4 * pages_for(max_model_len)).max(pages_for(DEFAULT_KV_TOKENS)));
            (useful as u64)
                .saturating_mul(d.page_bytes)
                .min((room / 2).max(one_sequence(max_model_len)))
        }
    };

    let rest = total.checked_sub(fixed).and_then(|left| left.checked_sub(kv_bytes));
    let variant_bytes = match (d.variant_memory, rest) {
        (Some(bytes), Some(rest)) if bytes <= rest => bytes,
        (None, Some(rest)) if d.mode == Mode::Delta || rest >= d.base_bytes => rest,
        // Without --memory the parts are the user's word, and the total is only an estimate.
        (Some(bytes), _) if d.memory.is_none() => bytes,
        (variants, _) => {
            let wanted = [
                Some(format!("the base takes {}", human(d.base_bytes))),
                variants.map(|bytes| format!("--variant-memory is {}", human(bytes))),
                Some(match d.kv_memory {
                    Some(bytes) => format!("--kv-memory is {}", human(bytes)),
                    None => format!("KV pages take {}", human(kv_bytes)),
                }),
            ];
            let wanted: Vec<String> = wanted.into_iter().flatten().collect();
            let total_name = if d.memory.is_some() {
                "--memory"
            } else {
                "the available memory"
            };
            return Err(format!(
                "{total_name} is {}, but {}; raise --memory or lower the parts",
                human(total),
                wanted.join(", ")
            ));
        }
    };
    Ok(Division {
        max_model_len,
        kv_pages: usize::try_from(kv_bytes / d.page_bytes).unwrap_or(usize::MAX),
        variant_bytes,
    })
}

/// Bytes for people: `1.5 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} bytes")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn demands() -> Demands {
        Demands {
            mode: Mode::Delta,
            memory: None,
            variant_memory: None,
            kv_memory: None,
            max_model_len: None,
            model_len: 512,
            max_seqs: 8,
            base_bytes: 100 * MIB,
            page_bytes: MIB,
            largest_variant: 10 * MIB,
            available: Some(1000 * MIB),
        }
    }

    #[test]
    fn the_parts_that_are_not_given_are_cut_from_the_whole() {
        let d = divide(&Demands {
            memory: Some(400 * MIB),
            ..demands()
        })
        .expect("fits");
        // 8 sequences of 32 pages would take 256 MiB; half of what is left of 290 MiB is 145 MiB.
        assert_eq!((d.kv_pages, d.variant_bytes), (145, 155 * MIB));
        assert_eq!(d.max_model_len, 512);
    }

    #[test]
    fn one_sequence_needs_no_more_than_its_own_pages() {
        let d = divide(&Demands {
            max_seqs: 1,
            ..demands()
        })
        .expect("fits");
        assert_eq!(d.kv_pages, 32);
    }

    #[test]
    fn without_limits_the_longest_sequence_follows_the_machine() {
        let d = divide(&Demands {
            available: Some(140 * MIB),
            ..demands()
        })
        .expect("fits");
        assert_eq!(d.max_model_len, 16 * 16);
        assert_eq!(d.kv_pages, 16);
    }

    #[test]
    fn contradictions_name_both_flags() {
        let says = |d: Demands, flags: &[&str]| {
            let message = divide(&d).expect_err("contradictory");
            assert!(flags.iter().all(|flag| message.contains(flag)), "{message}");
        };
        says(
            Demands {
                kv_memory: Some(31 * MIB),
                ..demands()
            },
            &["--kv-memory", "--max-model-len"],
        );
        says(
            Demands {
                memory: Some(120 * MIB),
                max_model_len: Some(512),
                ..demands()
            },
            &["--memory", "--max-model-len"],
        );
        says(
            Demands {
                memory: Some(200 * MIB),
                variant_memory: Some(80 * MIB),
                kv_memory: Some(40 * MIB),
                ..demands()
            },
            &["--memory", "--variant-memory", "--kv-memory"],
        );
        says(
            Demands {
                max_model_len: Some(1024),
                ..demands()
            },
            &["--max-model-len", "max_position_embeddings"],
        );
        let swap = Demands {
            mode: Mode::Swap,
            variant_memory: Some(99 * MIB),
            ..demands()
        };
        says(swap, &["--variant-memory", "--mode swap"]);
    }

    #[test]
    fn in_swap_mode_the_base_is_one_of_the_models() {
        let d = divide(&Demands {
            mode: Mode::Swap,
            memory: Some(400 * MIB),
            kv_memory: Some(64 * MIB),
            ..demands()
        });
        assert_eq!(d.expect("fits").variant_bytes, 336 * MIB);
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!([512, 1536, 3 << 30].map(human), ["512 bytes", "1.5 KiB", "3.0 GiB"]);
    }
}
