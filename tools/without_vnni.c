// A library to preload: programs see an x86 processor with AVX2 and nothing newer, and run at full speed.
// The kernel lets the instruction CPUID fault (arch_prctl ARCH_CPUID, Linux on Intel since Ivy Bridge); the handler runs
// it and clears the bits of AVX-512, VNNI, AMX and AVX-VNNI (Intel 64 and IA-32 Manual, volume 2A, CPUID, leaf 7).
// Used by tools/processors.py. Not inherited over execve, but the variable LD_PRELOAD is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID 0x1012
#define BIT(n) (1u << (n))

static const uint32_t LEAF7_EBX = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const uint32_t LEAF7_ECX = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14);
static const uint32_t LEAF7_EDX = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
static const uint32_t LEAF7_1_EAX = BIT(4) | BIT(5) | BIT(21) | BIT(23);
static const uint32_t LEAF7_1_EDX = BIT(4) | BIT(5) | BIT(10);

typedef int (*Sigaction)(int, const struct sigaction*, struct sigaction*);
static Sigaction real_sigaction;
static struct sigaction theirs;  // what the program itself wants to do about SIGSEGV

static void on_fault(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* at = (const uint8_t*)registers[REG_RIP];
  int is_fetch = info->si_code == SEGV_MAPERR && info->si_addr == (void*)at;  // a jump to nowhere
  if (!is_fetch && at[0] == 0x0f && at[1] == 0xa2) {
    uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_CPUID, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    syscall(SYS_arch_prctl, ARCH_CPUID, 0);
    if (leaf == 7 && part == 0) b &= ~LEAF7_EBX, c &= ~LEAF7_ECX, d &= ~LEAF7_EDX;
    if (leaf == 7 && part == 1) a &= ~LEAF7_1_EAX, d &= ~LEAF7_1_EDX;
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
    return;
  }
  if (theirs.sa_flags & SA_SIGINFO)
    theirs.sa_sigaction(number, info, context);
  else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN)
    theirs.sa_handler(number);
  else {
    real_sigaction(SIGSEGV, &theirs, NULL);  // the instruction faults again, and the program ends
    if (info->si_code <= 0) raise(number);   // nothing faulted: the signal was sent
  }
}

// Python's faulthandler and others install handlers of their own: they are called for all other faults.
int sigaction(int number, const struct sigaction* wanted, struct sigaction* before) {
  if (!real_sigaction) real_sigaction = (Sigaction)dlsym(RTLD_NEXT, "sigaction");
  if (number != SIGSEGV) return real_sigaction(number, wanted, before);
  if (before) *before = theirs;
  if (wanted) theirs = *wanted;
  return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction wanted = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
  return sigaction(number, &wanted, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void hide(void) {
  if (!real_sigaction) real_sigaction = (Sigaction)dlsym(RTLD_NEXT, "sigaction");
  struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  real_sigaction(SIGSEGV, &ours, NULL);
  if (syscall(SYS_arch_prctl, ARCH_CPUID, 0) != 0) {
    static const char text[] = "without_vnni: this processor cannot hide instructions: no CPUID faulting\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(3);
    _exit(3);
  }
}
