// bcryptprimitives.dll for Wine 8, which has none: Rust's standard library takes its random numbers there.
#include <windows.h>

typedef BOOLEAN(NTAPI* Generate)(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(unsigned char* bytes, SIZE_T count) {
  static Generate generate;
  if (!generate) generate = (Generate)(void*)GetProcAddress(LoadLibraryA("advapi32.dll"), "SystemFunction036");
  while (count) {
    const ULONG some = count > 0x10000000 ? 0x10000000 : (ULONG)count;
    if (!generate(bytes, some)) return FALSE;
    bytes += some;
    count -= some;
  }
  return TRUE;
}
