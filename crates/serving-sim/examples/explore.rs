use cenote_policy::Eviction;
use cenote_serving_sim::hits::*;
use cenote_serving_sim::workload::read_mooncake;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let file = std::io::BufReader::new(std::fs::File::open("/work/shared/data/mooncake_conversation.jsonl").unwrap());
    let workload = read_mooncake(file, 512, true).unwrap().workload;
    let evictions: Vec<Eviction> = if args[1] == "all" {
        Eviction::ALL.to_vec()
    } else {
        args[1].split(',').map(|e| e.parse().unwrap()).collect()
    };
    let sizes: Vec<usize> = args[2].split(',').map(|e| e.parse().unwrap()).collect();
    let chunk: usize = args[3].parse().unwrap();
    let routing = match args.get(4).map(|s| s.as_str()) {
        Some("sticky") => Routing::Sticky,
        Some("one") => Routing::One,
        _ => Routing::RoundRobin,
    };
    for &e in &evictions {
        for &size in &sizes {
            let a = hit_rate(&workload, e, Some(size), Instants::Block);
            let b = hit_rate(&workload, e, Some(size), Instants::Request);
            print!("{:10} {:6} ideal {:.3} / {:.3} :", e.to_string(), size, 100.0 * a.hit_rate, 100.0 * b.hit_rate);
            for count in [1, 2, 4, 8, 16] {
                let t = std::time::Instant::now();
                let r = hit_rate_on_hosts(
                    &workload,
                    e,
                    Some(size),
                    &Hosts { count, chunk_blocks: chunk, tick: 1_000_000_000, routing },
                );
                print!(" {:.3} [{} m {:.1}s]", 100.0 * r.hit_rate, r.moved_chunks, t.elapsed().as_secs_f64());
            }
            println!();
        }
    }
}
