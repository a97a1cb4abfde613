//! Rotary frequencies, with Llama 3.1's scaling.

use crate::{ModelConfig, RopeScaling};

/// One frequency for each pair of a head, in radians a position.
///
/// Computed in f32 as transformers does, so that the angles of late positions agree.
pub(super) fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let pairs = config.head_dim / 2;
    let plain = (0..pairs).map(|i| {
        let exponent = (2 * i) as f32 / config.head_dim as f32;
        1.0 / (config.rope_theta as f32).powf(exponent)
    });
    match config.rope_scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let original = original_max_position_embeddings as f64;
            plain
                .map(|frequency| {
                    let f = f64::from(frequency);
                    let wavelength = 2.0 * std::f64::consts::PI / f;
                    let scaled = if wavelength < original / high_freq_factor {
                        f
                    } else if wavelength > original / low_freq_factor {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    };
                    scaled as f32
                })
                .collect()
        }
    }
}
