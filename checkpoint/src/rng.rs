//! A small deterministic generator for test and bench inputs: SplitMix64 (Steele, Lea and Flood,
//! "Fast Splittable Pseudorandom Number Generators", 2014). The same seed gives the same inputs
//! on every machine.

/// SplitMix64: 64 bits of state, period 2^64; every seed is suitable.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is not 0). The bias is below `bound / 2^32`, which is
    /// irrelevant for test inputs.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal (Box-Muller, one of the two values).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Fills `bytes` with independent choices of `f`, which maps 8 random bits to a byte.
    pub fn fill_bytes(&mut self, bytes: &mut [u8], f: impl Fn(u8) -> u8) {
        for chunk in bytes.chunks_mut(8) {
            for (byte, random) in chunk.iter_mut().zip(self.next_u64().to_le_bytes()) {
                *byte = f(random);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs of the published C code (Vigna, splitmix64.c) for seed 1234567.
    #[test]
    fn equals_the_published_sequence() {
        let mut rng = SplitMix64::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (index, value) in expected.into_iter().enumerate() {
            assert_eq!(rng.next_u64(), value, "output {index}");
        }
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut rng = SplitMix64::new(1);
        let samples: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|x| x * x).sum::<f64>() / samples.len() as f64;
        approx::assert_abs_diff_eq!(mean, 0.0, epsilon = 0.02);
        approx::assert_abs_diff_eq!(variance, 1.0, epsilon = 0.03);
    }
}
