/*
 * A virtio-iommu whose requests the benchmark carries out, under Linux's driver, and endpoints of it on Linux's IOMMU core.
 */
#include "domain.h"
#include <linux/scatterlist.h>

typedef u32 (*shim_request)(void *context, const void *out, u32 out_bytes, void *in, u32 in_bytes);

struct shim_viommu {
	struct device parent;
	struct fwnode_handle node;
	struct virtio_device device;
	shim_request request;
	void *context;
	const u8 *config;
	u32 config_bytes;
};

struct shim_endpoint {
	struct device device;
	u64 mask;
};

int shim_call_iommu_subsys_init(void);
/* Of the one file that may: the device goes away. */
void shim_leave(struct device *device);

/* The one that there is. */
static struct shim_viommu *shim_unit;
extern struct virtio_driver *const shim_virtio_driver;

void shim_virtio_read(unsigned int offset, void *to, unsigned int bytes)
{
	memset(to, 0, bytes);
	if (offset + bytes <= shim_unit->config_bytes)
		memcpy(to, shim_unit->config + offset, bytes);
}

int virtio_find_vqs(struct virtio_device *device, unsigned int count, struct virtqueue **queues,
		    struct virtqueue_info *info, void *affinity)
{
	for (unsigned int i = 0; i < count; i++) {
		queues[i] = &device->queues[i];
		*queues[i] = (struct virtqueue){ .vdev = device, .callback = info[i].callback, .num_free = SHIM_CHAINS };
	}
	return 0;
}

static void forget_queues(struct virtio_device *device)
{
	memset(device->queues, 0, sizeof(device->queues));
}

static int add(struct virtqueue *queue, struct scatterlist *out, struct scatterlist *in, void *data)
{
	unsigned int at = queue->added % SHIM_CHAINS;

	if (!queue->num_free)
		return -ENOSPC;
	queue->num_free--;
	queue->added++;
	queue->chains[at].data = data;
	queue->chains[at].out = out ? sg_virt(out) : NULL;
	queue->chains[at].out_bytes = out ? out->length : 0;
	queue->chains[at].in = sg_virt(in);
	queue->chains[at].in_bytes = in->length;
	return 0;
}

int virtqueue_add_sgs(struct virtqueue *queue, struct scatterlist **lists, unsigned int out, unsigned int in, void *data,
		      gfp_t gfp)
{
	return out == 1 && in == 1 ? add(queue, lists[0], lists[1], data) : -EINVAL;
}

int virtqueue_add_inbuf(struct virtqueue *queue, struct scatterlist *list, unsigned int count, void *data, gfp_t gfp)
{
	return count == 1 ? add(queue, NULL, list, data) : -EINVAL;
}

/* What the device was given is carried out; buffers for events stay. */
bool virtqueue_kick(struct virtqueue *queue)
{
	struct shim_viommu *unit = container_of(queue->vdev, struct shim_viommu, device);

	while (queue == &unit->device.queues[0] && queue->kicked != queue->added) {
		typeof(&queue->chains[0]) chain = &queue->chains[queue->kicked++ % SHIM_CHAINS];

		chain->written = unit->request(unit->context, chain->out, chain->out_bytes, chain->in, chain->in_bytes);
	}
	return true;
}

void *virtqueue_get_buf(struct virtqueue *queue, unsigned int *written)
{
	typeof(&queue->chains[0]) chain = &queue->chains[queue->returned % SHIM_CHAINS];

	if (queue->returned == queue->kicked)
		return NULL;
	queue->returned++;
	queue->num_free++;
	*written = chain->written;
	return chain->data;
}

/* The device writes an event; the driver reports it. Whether there was a buffer. */
SHIM_ENTRY int linux_viommu_event(struct shim_viommu *unit, const void *event, u32 bytes)
{
	struct virtqueue *queue = &unit->device.queues[1];
	typeof(&queue->chains[0]) chain = &queue->chains[queue->kicked % SHIM_CHAINS];

	if (queue->kicked == queue->added || bytes > chain->in_bytes)
		return 0;
	memcpy(chain->in, event, bytes);
	chain->written = bytes;
	queue->kicked++;
	queue->callback(queue);
	return 1;
}

/* Starts the driver, under the strict policy; nothing if it refuses. There is one at a time. */
SHIM_ENTRY struct shim_viommu *linux_viommu(u64 features, const u8 *config, u32 config_bytes, shim_request request,
					    void *context)
{
	static const struct virtio_config_ops operations = { .del_vqs = forget_queues };
	struct shim_viommu *unit = shim_unit ? NULL : kzalloc(sizeof(*unit), GFP_KERNEL);

	if (!unit)
		return NULL;
	iommu_set_dma_strict();
	if (shim_call_iommu_subsys_init()) {
		kfree(unit);
		return NULL;
	}
	unit->parent.fwnode = &unit->node;
	unit->device.dev.parent = &unit->parent;
	unit->device.config = &operations;
	unit->device.features = features | BIT_ULL(VIRTIO_F_VERSION_1);
	unit->request = request;
	unit->context = context;
	unit->config = config;
	unit->config_bytes = config_bytes;
	shim_unit = unit;
	if (!shim_virtio_driver->probe(&unit->device))
		return unit;
	shim_unit = NULL;
	kfree(unit);
	return NULL;
}

SHIM_ENTRY void linux_viommu_end(struct shim_viommu *unit)
{
	shim_virtio_driver->remove(&unit->device);
	shim_unit = NULL;
	kfree(unit);
}

struct device *driver_find_device(const struct device_driver *driver, struct device *start, const void *data,
				  int (*match)(struct device *, const void *))
{
	return shim_unit && match(&shim_unit->device.dev, data) ? &shim_unit->device.dev : NULL;
}

struct device *bus_find_device(const struct bus_type *bus, struct device *start, const void *data,
			       int (*match)(struct device *, const void *))
{
	return driver_find_device(NULL, start, data, match);
}

/* Nothing reads sysfs. */
int iommu_device_sysfs_add(struct iommu_device *unit, struct device *parent, const struct attribute_group **groups,
			   const char *format, ...)
{
	return 0;
}

void iommu_device_sysfs_remove(struct iommu_device *unit)
{
}

int iommu_device_link(struct iommu_device *unit, struct device *device)
{
	return 0;
}

void iommu_device_unlink(struct iommu_device *unit, struct device *device)
{
}

const struct bus_type platform_bus_type;

SHIM_ENTRY void linux_endpoint_end(struct shim_endpoint *endpoint)
{
	shim_leave(&endpoint->device);
	kfree(endpoint);
}

/* A device behind it, as firmware's table names it; nothing if Linux refuses. It has a domain for its buffers at once. */
SHIM_ENTRY struct shim_endpoint *linux_endpoint(struct shim_viommu *unit, u32 id)
{
	struct shim_endpoint *endpoint = kzalloc(sizeof(*endpoint), GFP_KERNEL);
	struct device *device = &endpoint->device;

	if (!endpoint)
		return NULL;
	endpoint->mask = DMA_BIT_MASK(64);
	device->dma_mask = &endpoint->mask;
	device->dma_coherent = true;
	device->dma_skip_sync = true;
	if (!iommu_fwspec_init(device, &unit->node) && !iommu_fwspec_add_ids(device, &id, 1) && !iommu_probe_device(device) &&
	    device->dma_iommu)
		return endpoint;
	linux_endpoint_end(endpoint);
	return NULL;
}

/* Buffers, as a driver of the device maps them. */
SHIM_ENTRY u64 linux_endpoint_map(struct shim_endpoint *endpoint, u64 pa, u64 bytes, u32 direction)
{
	return shim_dma_map(&endpoint->device, pa, bytes, direction);
}

SHIM_ENTRY void linux_endpoint_unmap(struct shim_endpoint *endpoint, u64 iova, u64 bytes, u32 direction)
{
	shim_dma_unmap(&endpoint->device, iova, bytes, direction);
}

/* The first address, and in `last` the last one, of those that Linux keeps free for messages of its interrupts. */
SHIM_ENTRY u64 linux_endpoint_doorbell(struct shim_endpoint *endpoint, u64 *last)
{
	struct iommu_resv_region *region;
	u64 start = ~0ull;
	LIST_HEAD(regions);

	iommu_get_resv_regions(&endpoint->device, &regions);
	list_for_each_entry(region, &regions, list) {
		if (region->type == IOMMU_RESV_MSI) {
			start = region->start;
			*last = region->start + region->length - 1;
		}
	}
	iommu_put_resv_regions(&endpoint->device, &regions);
	return start;
}

/* A domain without a policy, as VFIO has them, in the place of the one for buffers. */
SHIM_ENTRY struct iommu_domain *linux_endpoint_domain(struct shim_endpoint *endpoint)
{
	struct iommu_domain *domain = iommu_paging_domain_alloc(&endpoint->device);

	if (IS_ERR(domain))
		return NULL;
	if (!iommu_attach_device(domain, &endpoint->device))
		return domain;
	iommu_domain_free(domain);
	return NULL;
}

/* Back to the one for buffers. */
SHIM_ENTRY void linux_endpoint_domain_end(struct shim_endpoint *endpoint, struct iommu_domain *domain)
{
	iommu_detach_device(domain, &endpoint->device);
	iommu_domain_free(domain);
}

SHIM_ENTRY int linux_domain_map(struct iommu_domain *domain, u64 iova, u64 pa, u64 bytes, int access)
{
	return iommu_map(domain, iova, pa, bytes, access, GFP_KERNEL);
}

SHIM_ENTRY u64 linux_domain_unmap(struct iommu_domain *domain, u64 iova, u64 bytes)
{
	return iommu_unmap(domain, iova, bytes);
}
