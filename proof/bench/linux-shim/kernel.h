/*
 * Comes before every source file of Linux's that is compiled. Other headers are those of Linux's own that stand alone, or empty.
 */
#ifndef SHIM_KERNEL_H
#define SHIM_KERNEL_H

#define SHIM_ENTRY __attribute__((visibility("default")))
int linux_warnings(void);

#include "basic.h"
#include <linux/errno.h>
#include <linux/const.h>
#include <linux/build_bug.h>
#include <linux/container_of.h>
#include <linux/minmax.h>
#include <linux/limits.h>
#include <linux/align.h>
#include <linux/log2.h>
#include <linux/overflow.h>
#include <linux/sizes.h>
#include <linux/err.h>
struct list_head { struct list_head *next, *prev; };
struct hlist_node { struct hlist_node *next, **pprev; };
struct hlist_head { struct hlist_node *first; };
#include "sync.h"
#include "memory.h"
#include "device.h"
#include "virtio.h"
#include "kunit.h"

#endif
