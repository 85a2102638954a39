#![allow(clippy::all, missing_docs)]
use cenote_base::Clock;
use cenote_codec::*;
use cenote_engine::*;
use cenote_quality::{CodecSubject, Subject, bases, evaluate::evaluate, text::Windows};
use std::{fs, io::BufReader, sync::Arc};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let env = |n: &str, d: &str| std::env::var(n).unwrap_or(d.to_owned());
    let model = LoadedModel::load(&EngineConfig {
        dtype: ElementType::F32,
        ..EngineConfig::new(a[1].clone().into(), Clock::system())
    })
    .unwrap();
    let context: usize = env("CONTEXT", "512").parse().unwrap();
    let t = std::time::Instant::now();
    let cache = env("CACHE", "");
    let profile = if std::path::Path::new(&cache).exists() {
        Profile::parse(&fs::read(&cache).unwrap()).unwrap()
    } else {
        let prompts = Windows::new(BufReader::new(fs::File::open(&a[2]).unwrap()), model.tokenizer(), context)
            .take_some(env("PROMPTS", "16").parse().unwrap())
            .unwrap();
        eprintln!("{} prompts, {:?}", prompts.len(), t.elapsed());
        let b = bases::bases(&model, &prompts, &mut |_| eprint!(".")).unwrap();
        eprintln!(
            "bases {:?} {} bytes; comps {:?}",
            t.elapsed(),
            b.bytes(),
            b.groups.iter().map(|s| [s[0].components(), s[1].components()]).collect::<Vec<_>>()
        );
        let l = model.layout();
        let ch = l.num_kv_heads * l.head_dim;
        let side = SideProfile {
            means: vec![0.0; ch],
            deviations: vec![1.0; ch],
            steps: vec![1.0; ch],
            values: vec![0.0; 2001],
            centered: vec![0.0; 2001],
            normal: vec![0.0; 2001],
        };
        let p = Profile {
            model: model.fingerprint(),
            tokens: 0,
            prompts: 0,
            layers: vec![[side.clone(), side]; l.num_layers],
            bases: Some(b),
        };
        if !cache.is_empty() {
            fs::write(&cache, p.to_bytes()).unwrap();
        }
        p
    };
    let windows = Windows::new(BufReader::new(fs::File::open(&a[3]).unwrap()), model.tokenizer(), context)
        .take_some(env("WINDOWS", "4").parse().unwrap())
        .unwrap();
    let mut subjects: Vec<Box<dyn Subject>> = vec![];
    for name in env("CODECS", "kivi:4,kivi:3,0.05/0.02,0.08/0.03,0.1/0.05").split(',') {
        if let Some(b) = name.strip_prefix("kivi:") {
            subjects.push(Box::new(Kivi { bits: b.parse().unwrap() }));
            continue;
        }
        let (k, v) = name.split_once('/').unwrap();
        let c = Prism::new(
            profile.bases.as_ref().unwrap(),
            profile.layers.len(),
            [k.parse().unwrap(), v.parse().unwrap()],
            7,
        )
        .unwrap();
        subjects.push(Box::new(CodecSubject::new(name, Arc::new(c))));
    }
    let refs: Vec<&dyn Subject> = subjects.iter().map(|s| &**s).collect();
    for bt in env("BLOCK", "32").split(',') {
        let t = std::time::Instant::now();
        let e = evaluate(&model, &windows, bt.parse().unwrap(), &refs, &mut |_| {}).unwrap();
        println!("{} windows of {context}, blocks of {bt}; ppl {:.3}; {:?}", e.windows, e.perplexity, t.elapsed());
        for q in &e.codecs {
            println!(
                "{:14} bits {:.3} ratio {:.2} KL {:.2}±{:.2} ppl {:.3} ({:+.2}±{:.2} %) same {:.1} K {:.1e} V {:.1e}",
                q.codec,
                q.bits,
                q.ratio,
                q.harm.kl * 1e3,
                q.harm.kl_se * 1e3,
                q.harm.perplexity,
                q.harm.loss_percent,
                q.harm.loss_percent_se,
                q.harm.greedy_agreement * 100.0,
                q.k_mse,
                q.v_mse
            );
        }
    }
}

struct Kivi {
    bits: u32,
}
fn group(values: &mut [&mut f32], bits: u32) {
    let lo = values.iter().map(|v| **v).fold(f32::INFINITY, f32::min);
    let hi = values.iter().map(|v| **v).fold(f32::NEG_INFINITY, f32::max);
    let most = ((1u32 << bits) - 1) as f32;
    let f = |x: f32| half::f16::from_f32(x).to_f32();
    let (lo, s) = (f(lo), f((hi - lo) / most));
    for v in values {
        let c = if s > 0.0 { ((**v - lo) / s).round_ties_even().clamp(0.0, most) } else { 0.0 };
        **v = c * s + lo;
    }
}
impl Subject for Kivi {
    fn name(&self) -> String {
        format!("kivi:{}", self.bits)
    }
    fn round_trip(&self, kind: &PageKind, page: &mut [u8]) -> Result<u64, cenote_quality::StudyError> {
        let mut v = cenote_quality::values_of(kind, page);
        let d = usize::from(kind.shape.dim);
        if kind.side == Side::K {
            for h in v.chunks_exact_mut(kind.shape.head_values()) {
                for t in h.chunks_mut(32 * d) {
                    for c in 0..d {
                        group(&mut t.iter_mut().skip(c).step_by(d).collect::<Vec<_>>(), self.bits);
                    }
                }
            }
        } else {
            for t in v.chunks_exact_mut(d) {
                for g in t.chunks_mut(32) {
                    group(&mut g.iter_mut().collect::<Vec<_>>(), self.bits);
                }
            }
        }
        cenote_quality::put_values(kind, page, &v);
        Ok((u64::from(self.bits) + 1) * v.len() as u64)
    }
}
