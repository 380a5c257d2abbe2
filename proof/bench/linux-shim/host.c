/*
 * What the shim asks of the C library: memory and messages. The only file that sees its headers.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *shim_host_zeroed(size_t bytes);
void *shim_host_zeroed(size_t bytes)
{
	void *at = calloc(1, bytes);

	return at;
}

void shim_host_release(void *at);
void shim_host_release(void *at)
{
	free(at);
}

static void *map(size_t bytes, size_t align, int flags)
{
	char *at = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	return (char *)(((unsigned long)at + align - 1) & ~(align - 1));
}

/* Populated memory that begins at a multiple of `align`, a power of two; never given back. */
void *shim_host_map(size_t bytes, size_t align);
void *shim_host_map(size_t bytes, size_t align)
{
	return map(bytes, align, MAP_POPULATE);
}

/* The same, whose pages exist once they are written. */
void *shim_host_reserve(size_t bytes, size_t align);
void *shim_host_reserve(size_t bytes, size_t align)
{
	return map(bytes, align, MAP_NORESERVE);
}

/* The last message; that of the self-test has its figures. */
static char last[256];

const char *shim_host_last(void);
const char *shim_host_last(void)
{
	return last;
}

static void keep(const char *format, va_list arguments)
{
	vsnprintf(last, sizeof(last), format, arguments);
	last[strcspn(last, "\n")] = 0;
}

void shim_note(const char *format, ...);
void shim_note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	keep(format, arguments);
	va_end(arguments);
}

void shim_print(const char *format, ...);
void shim_print(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	keep(format, arguments);
	va_end(arguments);
	fprintf(stderr, "linux: %s\n", last);
}
