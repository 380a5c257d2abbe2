/*
 * Devices and buses, as far as Linux's sources look into them, and names of what is not there.
 *
 * The benchmark's device is on no bus, trusted, with 64-bit masks. It costs what the kernel's does: fields of one structure are read.
 */
#ifndef SHIM_DEVICE_H
#define SHIM_DEVICE_H

struct kset;
struct kobject { struct kobject *parent; struct kset *kset; };
struct kobj_type { void (*release)(struct kobject *); const void *sysfs_ops; const void *default_groups; };
struct attribute { const char *name; umode_t mode; };
struct attribute_group { const char *name; struct attribute **attrs; };
struct sysfs_ops {
	ssize_t (*show)(struct kobject *, struct attribute *, char *);
	ssize_t (*store)(struct kobject *, struct attribute *, const char *, size_t);
};
#define __ATTR(attr_name, attr_mode, attr_show, attr_store) \
	{ .attr = { .name = #attr_name, .mode = attr_mode }, .show = attr_show, .store = attr_store }
#define S_IRUGO 0444
#define S_IRUSR 0400
#define S_IWUSR 0200
struct notifier_block { int (*notifier_call)(struct notifier_block *, unsigned long, void *); int priority; };
struct bus_type { const char *name; int (*dma_configure)(void *); void (*dma_cleanup)(void *); };
struct device_driver { const char *name; const void *suppress_bind_attrs; bool driver_managed_dma; };
struct fwnode_handle { void *secondary; };
struct device_node { struct fwnode_handle fwnode; };
struct device_dma_parameters { unsigned int max_segment_size, min_align_mask; unsigned long segment_boundary_mask; };
struct dev_archdata { void *iommu; };
struct ida { int next; };
struct idr { int next; };
struct xarray { void *first; };
#define DEFINE_DEBUGFS_ATTRIBUTE(name, ...) static const int name __maybe_unused
#define DEFINE_IDA(name) struct ida name
/* Numbers, none of which is given twice. */
#define ida_init(ida) ((void)((ida)->next = 0))
#define ida_alloc(ida, gfp) ((ida)->next++)
#define ida_alloc_range(ida, least, most, gfp) ((u64)(least) + (ida)->next > (most) ? -ENOSPC : (int)(least) + (ida)->next++)
#define ida_free(ida, number) ((void)(number))
#define xa_init(x) ((void)(x))
#define XA_ERROR(x) ((void *)0)
#define XA_ZERO_ENTRY ((void *)1030UL)
#define xa_for_each_start(xa, index, entry, from) while (((entry) = NULL))
struct io_tlb_mem;
struct iommu_group;
struct dev_iommu;
struct dma_map_ops;
struct bus_dma_region;

struct device {
	struct kobject kobj;
	struct device *parent;
	const struct bus_type *bus;
	struct device_driver *driver;
	void *driver_data;
	u64 *dma_mask;
	u64 coherent_dma_mask;
	u64 bus_dma_limit;
	const struct bus_dma_region *dma_range_map;
	struct device_dma_parameters *dma_parms;
	struct io_tlb_mem *dma_io_tlb_mem;
	struct dev_archdata archdata;
	struct device_node *of_node;
	struct fwnode_handle *fwnode;
	int numa_node;
	struct mutex mutex;
	struct iommu_group *iommu_group;
	struct dev_iommu *iommu;
	const struct dma_map_ops *dma_ops;
	void (*release)(struct device *);
	bool dma_coherent, dma_skip_sync, dma_iommu, dma_ops_bypass;
};
#define dev_to_node(device) ((device)->numa_node)
#define set_dev_node(device, node) ((device)->numa_node = (node))
#define dev_dma_coherent(device) ((device)->dma_coherent)
#define dev_assign_dma_iommu(device, is) ((device)->dma_iommu = (is))
#define dev_clear_dma_iommu(device) ((device)->dma_iommu = false)
#define dev_clear_dma_skip_sync(device) ((device)->dma_skip_sync = false)
#define dev_dma_skip_sync(device) ((device)->dma_skip_sync)
#define dev_name(device) "device"
#define dev_fwnode(device) ((device)->fwnode)
#define device_match_fwnode(device, node) ((device)->fwnode == (node))
#define put_device(device) ((void)(device))
#define fwnode_handle_get(node) ((void)(node))
#define fwnode_handle_put(node) ((void)(node))
#define device_property_read_u32(device, name, value) (-EINVAL)
#define try_module_get(module) true
#define module_put(module) ((void)(module))
#define is_module_address(at) false
/* Devices come and go by name, not by bus. */
#define bus_for_each_dev(bus, start, data, function) ((void)(function), 0)
#define bus_register_notifier(bus, notifier) 0
#define of_iommu_get_resv_regions(device, list) ((void)(list))
#define iort_iommu_get_resv_regions(device, list) ((void)(list))
/* Nothing reads sysfs: its objects are neither counted nor given back. */
#define kobject_init_and_add(object, type, parent, ...) ((void)(type), 0)
#define kobject_create_and_add(name, parent) ((struct kobject *)shim_zeroed(sizeof(struct kobject)))
#define kobject_get(object) (object)
#define kobject_put(object) ((void)(object))
#define kobject_name(object) "device"
#define sysfs_create_file(object, file) 0
#define sysfs_create_link(object, to, name) 0
#define sysfs_create_link_nowarn(object, to, name) 0
#define sysfs_remove_link(object, name) ((void)(name))
#define sysfs_emit(to, ...) 0
#define sysfs_emit_at(to, at, ...) 0
#define dev_is_pci(device) false
#define dev_is_removable(device) false
#define dev_is_platform(device) false
#define kobj_to_dev(k) container_of(k, struct device, kobj)
#define dev_iommu_ops_of(device) NULL
#define dma_get_ops_of(device) NULL
#define driver_deferred_probe_check_state(device) (-ENODEV)
#define dev_get_drvdata(device) ((device)->driver_data)
#define is_of_node(node) false
#define is_kdump_kernel() false
#define ACPI_HANDLE(device) NULL

struct resource { resource_size_t start, end; const char *name; unsigned long flags; };
struct resource_entry { struct list_head node; struct resource *res; resource_size_t offset; };
#define IORESOURCE_MEM 0x200
#define resource_type(r) ((r)->flags)
#define resource_list_for_each_entry(entry, list) list_for_each_entry(entry, list, node)
struct pci_bus { struct pci_bus *parent; struct pci_dev *self; struct list_head devices; };
struct pci_dev { struct device dev; struct pci_bus *bus; bool untrusted; unsigned int devfn; u8 multifunction; struct list_head bus_list; };
struct pci_host_bridge { struct list_head windows, dma_ranges; };
#define to_pci_dev(d) container_of(d, struct pci_dev, dev)
#define is_pci_p2pdma_page(page) false
struct msi_desc { struct device *dev; dma_addr_t iommu_msi_iova; };
struct msi_msg { u32 address_lo, address_hi, data; };
struct of_phandle_args { u32 args[1]; };
struct of_device_id;
struct platform_device;

#define for_each_pci_dev(device) while (((device) = NULL))
#define PCI_ACS_SV 1
#define PCI_ACS_RR 4
#define PCI_ACS_CR 8
#define PCI_ACS_UF 16
enum { BUS_NOTIFY_ADD_DEVICE, BUS_NOTIFY_REMOVED_DEVICE, NOTIFY_DONE = 0, NOTIFY_OK };
#define IOMMU_HWPT_ALLOC_PASID 8
#define CAP_SYS_ADMIN 21
#define CAP_SYS_RAWIO 17
#define VM_MAP 4
extern const struct bus_type platform_bus_type;
extern struct kobject *kernel_kobj;

/* Trace points without listeners: the kernel jumps over them. */
#define trace_map(...) ((void)0)
#define trace_unmap(...) ((void)0)
#define trace_attach_device_to_domain(...) ((void)0)
#define trace_add_device_to_group(...) ((void)0)
#define trace_remove_device_from_group(...) ((void)0)
#define trace_io_page_fault(...) ((void)0)
#define trace_swiotlb_bounced(...) ((void)0)

#endif
