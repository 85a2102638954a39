//! Shell completions and manual pages of a command.

use crate::args::{CompletionsArgs, ManArgs, with_headings};
use crate::failure::Failure;
use crate::output::{hint, print_piece, say};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// The command line with all its commands.
fn complete<C: CommandFactory>() -> Command {
    let mut command = with_headings(C::command());
    command.build();
    command
}

/// Prints the completion script of a shell.
pub fn completions<C: CommandFactory>(args: &CompletionsArgs) {
    let mut script = Vec::new();
    let mut command = complete::<C>();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print_piece(&String::from_utf8_lossy(&script));
}

/// Prints a manual page, or writes the pages of all commands.
///
/// # Errors
/// There is no such command, or a page cannot be written.
pub fn man<C: CommandFactory>(args: &ManArgs) -> Result<(), Failure> {
    let command = complete::<C>();
    if let Some(dir) = &args.out {
        let failed = |error| Failure::new(format!("{}: cannot write the pages: {error}", dir.display()));
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut count = 0;
        for (name, page) in pages(&command, command.get_name())? {
            std::fs::write(dir.join(format!("{name}.1")), page).map_err(failed)?;
            count += 1;
        }
        say(&format!("{}: {count} pages", dir.display()));
        if dir.file_name().is_none_or(|name| name != "man1") {
            hint("`man` looks for them in a directory named man1, such as ~/.local/share/man/man1");
        }
        return Ok(());
    }
    let mut at = &command;
    let mut name = command.get_name().to_owned();
    for word in &args.command {
        let inner = at.find_subcommand(word).filter(|inner| !inner.is_hide_set());
        at = inner.ok_or_else(|| {
            Failure::new(format!("`{}` is no command", args.command.join(" ")))
                .hint(format!("`{} --help` lists the commands", name.replace('-', " ")))
        })?;
        name = format!("{name}-{word}");
    }
    print_piece(&String::from_utf8_lossy(&page(at, &name)?));
    Ok(())
}

/// The pages of a command and of those below it, by name.
fn pages(command: &Command, name: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut all = vec![(name.to_owned(), page(command, name)?)];
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help") {
        all.extend(pages(inner, &format!("{name}-{}", inner.get_name()))?);
    }
    Ok(all)
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command.clone()).title(name).source(concat!("cenote ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    Ok(page)
}
