// ^C while a command works: it ends in order and says what it has.
#pragma once

namespace deltaring::cli {

// From now on a first ^C only makes `interrupted` true, and a second one ends the process at once.
void catch_interrupts();
bool interrupted();

}  // namespace deltaring::cli
