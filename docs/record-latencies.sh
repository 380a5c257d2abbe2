# Records how long Linux's functions of DMA mapping take, while a command runs; as root, Linux 6.x with
# CONFIG_FUNCTION_GRAPH_TRACER: sh record-latencies.sh FILE COMMAND...
# The kernel's tracing is left as it is after boot: without a tracer, events or filters.
file=$1
shift
cd /sys/kernel/tracing || exit 2

reset() {
    echo 0 > tracing_on
    echo nop > current_tracer
    echo > set_ftrace_filter
    echo 0 > events/enable
}
reset
# All of a family's functions that this kernel has; a name that it does not have is passed over.
for functions in 'iommu_map' 'iommu_map_sg' 'iommu_map_nosync' 'iommu_unmap' 'iommu_unmap_fast' \
    'qi_submit_sync' 'arm_smmu_cmdq_issue_cmdlist' 'amd_iommu_domain_flush_pages' \
    'swiotlb_tbl_map_single' 'swiotlb_tbl_unmap_single' '__swiotlb_tbl_unmap_single' 'swiotlb_bounce' \
    'iommu_dma_map_page' 'iommu_dma_unmap_page' 'iommu_dma_map_phys' 'iommu_dma_unmap_phys' \
    'iommu_dma_map_sg' 'iommu_dma_unmap_sg' 'iommu_get_dma_domain'; do
    echo "$functions" >> set_ftrace_filter
done 2> /dev/null
# What says how many pages and commands a call was for.
for event in iommu/map iommu/unmap intel_iommu/qi_submit swiotlb/swiotlb_bounced; do
    echo 1 > events/$event/enable
done 2> /dev/null
# Linux 6.15 and later: arguments. Interrupts: marked.
echo 1 > options/funcgraph-args 2> /dev/null
echo 1 > options/funcgraph-irqs
echo 16384 > buffer_size_kb
echo function_graph > current_tracer || exit 2
echo > trace
echo 1 > tracing_on
"$@"
echo 0 > tracing_on
cat trace > "$file"
reset
