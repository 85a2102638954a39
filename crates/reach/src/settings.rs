//! The setting `peers`, the same text everywhere, as in `10.0.0.2:7411,10.0.0.3:7411,deadline=0.5`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Default time that a request waits for blocks of peers.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(500);
/// Longest such time. A request that waits longer has lost to computing.
const DEADLINE_MAX: Duration = Duration::from_secs(60);
/// Most peers.
const PEERS_MAX: usize = 64;

/// Peers and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `HOST:PORT` of each peer's `cenote pool share`.
    pub peers: Vec<String>,
    /// Longest time that a request waits for them.
    pub deadline: Duration,
}

/// The text is no setting.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ParseSettingsError {
    /// There is no peer.
    #[error("no peer is named; write HOST:PORT,HOST:PORT as in 10.0.0.2:7411")]
    NoPeer,
    /// There are too many.
    #[error("more than {PEERS_MAX} peers")]
    TooMany,
    /// A part is neither a peer nor an option.
    #[error("`{0}` is neither HOST:PORT nor deadline=SECONDS")]
    Part(String),
    /// The deadline is too long.
    #[error("`{0}`: requests wait at most {most} seconds for peers", most = DEADLINE_MAX.as_secs())]
    TooLong(String),
}

impl FromStr for Settings {
    type Err = ParseSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut settings = Self { peers: Vec::new(), deadline: DEFAULT_DEADLINE };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || ParseSettingsError::Part(part.to_owned());
            if let Some(seconds) = part.strip_prefix("deadline=") {
                let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
                settings.deadline = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                // Nothing arrives without time.
                if settings.deadline.is_zero() {
                    return Err(wrong());
                }
                if settings.deadline > DEADLINE_MAX {
                    return Err(ParseSettingsError::TooLong(part.to_owned()));
                }
            } else {
                let (host, port) = part.rsplit_once(':').ok_or_else(wrong)?;
                if host.is_empty() || port.parse::<u16>().map_or(true, |port| port == 0) {
                    return Err(wrong());
                }
                settings.peers.push(part.to_owned());
            }
        }
        match settings.peers.len() {
            0 => Err(ParseSettingsError::NoPeer),
            1..=PEERS_MAX => Ok(settings),
            _ => Err(ParseSettingsError::TooMany),
        }
    }
}

/// The text that parses to these settings.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},deadline={}", self.peers.join(","), self.deadline.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_as_it_is_shown() {
        let settings: Settings = "a:1, [::1]:7411,deadline=0.25".parse().expect("a setting");
        assert_eq!(settings.peers, ["a:1", "[::1]:7411"]);
        assert_eq!(settings.deadline, Duration::from_millis(250));
        assert_eq!(settings.to_string().parse(), Ok(settings));
    }

    #[test]
    fn a_wrong_setting_names_its_part() {
        for wrong in ["a", "a:", ":1", "a:0", "a:70000", "a:1,deadline=0", "a:1,deadline=soon"] {
            let error = wrong.parse::<Settings>().expect_err(wrong);
            assert!(matches!(error, ParseSettingsError::Part(_)), "{wrong}: {error}");
        }
        assert_eq!("".parse::<Settings>(), Err(ParseSettingsError::NoPeer));
        for long in ["a:1,deadline=60.1", "a:1,deadline=1e18"] {
            let error = long.parse::<Settings>().expect_err(long).to_string();
            assert!(error.contains("60 seconds"), "{error}");
        }
        assert!("a:1,deadline=60".parse::<Settings>().is_ok());
        assert_eq!("a:1,".repeat(65).parse::<Settings>(), Err(ParseSettingsError::TooMany));
    }
}
