/*
 * Virtio, as far as a driver of a device looks into it: a device with its configuration, queues, and a driver's table.
 *
 * The queues are the shim's own (virtio.c): no ring and no interrupt, a request is carried out when the driver kicks.
 */
#ifndef SHIM_VIRTIO_H
#define SHIM_VIRTIO_H

struct scatterlist;
struct virtio_device;

struct virtqueue {
	struct virtio_device *vdev;
	void (*callback)(struct virtqueue *);
	unsigned int num_free;
	/* Taken from the driver: where it wrote and where the device may, and what it calls the two. */
	unsigned int added, kicked, returned;
	struct { void *out, *in, *data; unsigned int out_bytes, in_bytes, written; } chains[16];
};
#define SHIM_CHAINS ARRAY_SIZE(((struct virtqueue *)0)->chains)
struct virtqueue_info { const char *name; void (*callback)(struct virtqueue *); bool ctx; };

struct virtio_config_ops { void (*del_vqs)(struct virtio_device *); };
struct virtio_device {
	struct device dev;
	const struct virtio_config_ops *config;
	u64 features;
	void *priv;
	struct virtqueue queues[2];
	bool ready;
};
#define dev_to_virtio(device) container_of(device, struct virtio_device, dev)
#define virtio_bus_name(device) "virtio"

struct virtio_device_id { u32 device, vendor; };
#define VIRTIO_DEV_ANY_ID 0xffffffff
struct virtio_driver {
	struct device_driver driver;
	const struct virtio_device_id *id_table;
	const unsigned int *feature_table;
	unsigned int feature_table_size;
	int (*probe)(struct virtio_device *);
	void (*remove)(struct virtio_device *);
	void (*config_changed)(struct virtio_device *);
};
#define KBUILD_MODNAME "virtio_iommu"
#define MODULE_DEVICE_TABLE(type, table)
/* What the kernel has loaded, found by the shim. */
#define module_virtio_driver(driver) struct virtio_driver *const shim_virtio_driver = &driver

struct device *driver_find_device(const struct device_driver *driver, struct device *start, const void *data,
				  int (*match)(struct device *, const void *));

#define VIRTIO_F_VERSION_1 32
#define virtio_has_feature(device, bit) (!!((device)->features & BIT_ULL(bit)))
void shim_virtio_read(unsigned int offset, void *to, unsigned int bytes);
#define virtio_cread_le(device, type, member, to) \
	shim_virtio_read(offsetof(type, member), to, sizeof(((type *)0)->member))
#define virtio_cread_le_feature(device, bit, type, member, to) \
	(virtio_has_feature(device, bit) ? (virtio_cread_le(device, type, member, to), 0) : -ENOENT)
#define virtio_device_ready(device) ((void)((device)->ready = true))
#define virtio_reset_device(device) ((void)((device)->ready = false))
int virtio_find_vqs(struct virtio_device *device, unsigned int count, struct virtqueue **queues,
		    struct virtqueue_info *info, void *affinity);
int virtqueue_add_sgs(struct virtqueue *queue, struct scatterlist **lists, unsigned int out, unsigned int in, void *data,
		      gfp_t gfp);
int virtqueue_add_inbuf(struct virtqueue *queue, struct scatterlist *list, unsigned int count, void *data, gfp_t gfp);
bool virtqueue_kick(struct virtqueue *queue);
void *virtqueue_get_buf(struct virtqueue *queue, unsigned int *written);

#endif
