//! Messages of a child to its parent: one line each, written at once, so that a death never leaves
//! half of one.

use super::operations::Operations;
use cenote_base::fault::Point;
use std::io::Write;

/// One line on the child's stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// It has joined the region.
    Joined,
    /// Its operations since the last report.
    Did(Operations),
    /// Bytes of readable blocks, and bytes for blocks.
    Fill(u64, u64),
    /// Counters of its host, in the order of [`super::operations::COUNTERS`].
    Counters(Vec<u64>),
    /// Bytes were wrong: their number, and where.
    Wrong(u64, String),
    /// A lock admitted two holders, or did not report a death.
    Lock(String),
    /// It kills itself at this fault point now.
    Fault(Point),
    /// It waits at this fault point to be stopped.
    Stopped(Point),
}

impl Message {
    /// Sends it to the parent. Without a parent the process ends.
    pub fn send(&self) {
        let line = self.line();
        let mut stdout = std::io::stdout().lock();
        if stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).is_err() {
            std::process::exit(1);
        }
    }

    fn line(&self) -> String {
        let numbers = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Self::Joined => "joined\n".to_owned(),
            Self::Did(operations) => format!("did {}\n", numbers(&operations.0)),
            Self::Fill(ready, data) => format!("fill {ready} {data}\n"),
            Self::Counters(values) => format!("counters {}\n", numbers(values)),
            Self::Wrong(bytes, place) => format!("wrong {bytes} {place}\n"),
            Self::Lock(fact) => format!("lock {fact}\n"),
            Self::Fault(point) => format!("fault {point}\n"),
            Self::Stopped(point) => format!("stopped {point}\n"),
        }
    }

    /// Parses a line; `None` if it is no message.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers = || rest.split(' ').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>();
        match word {
            "joined" => Some(Self::Joined),
            "did" => Some(Self::Did(Operations(numbers()?.try_into().ok()?))),
            "fill" => <[u64; 2]>::try_from(numbers()?).ok().map(|[ready, data]| Self::Fill(ready, data)),
            "counters" => Some(Self::Counters(numbers()?)),
            "wrong" => rest.split_once(' ').and_then(|(n, place)| Some(Self::Wrong(n.parse().ok()?, place.to_owned()))),
            "lock" => Some(Self::Lock(rest.to_owned())),
            "fault" => rest.parse().ok().map(Self::Fault),
            "stopped" => rest.parse().ok().map(Self::Stopped),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_parse_as_written() {
        let mut operations = Operations::default();
        operations.0[2] = 7;
        for message in [
            Message::Joined,
            Message::Did(operations),
            Message::Fill(3, 4),
            Message::Counters(vec![1, 2, 3]),
            Message::Wrong(5, "block 3, pinned".to_owned()),
            Message::Lock("two inside".to_owned()),
            Message::Fault(Point::IndexCounted),
            Message::Stopped(Point::TableNamed),
        ] {
            assert_eq!(Message::parse(message.line().trim_end()), Some(message));
        }
        assert!(["", "did 1", "test result: ok", "fill 1", "wrong x y"].iter().all(|l| Message::parse(l).is_none()));
    }
}
