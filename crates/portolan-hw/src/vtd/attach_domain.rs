//! Attaching streams, and PASIDs of them, to domains with tables of either stage.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{Attach, AttachError, PagedDomain};
use portolan::platform::{TableMem, UnitPlatform};
use portolan::table::format::{VtdFirstStage, VtdSecondStage};

use super::attach::{RID_PASID, Target};
use super::core::VtdQueue;
use super::unit::Vtd;
use crate::chassis::book::Hold;

macro_rules! attach {
    ($format:ident, $stage:ident) => {
        impl<T, P: UnitPlatform> Attach<PagedDomain<$format, T, VtdQueue<P>>> for Vtd<P>
        where
            T: TableMem<AtomicU64> + 'static,
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, RID_PASID, domain)
            }

            fn attach_pasid(
                &self,
                stream: StreamId,
                pasid: Pasid,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, self.checked(pasid)?, domain)
            }
        }

        impl<T, P: UnitPlatform> AttachAs<PagedDomain<$format, T, VtdQueue<P>>> for Vtd<P>
        where
            T: TableMem<AtomicU64> + 'static,
        {
            fn attach_as(
                &self,
                stream: StreamId,
                pasid: u32,
                domain: &Arc<PagedDomain<$format, T, VtdQueue<P>>>,
            ) -> Result<(), AttachError> {
                let ours = Arc::ptr_eq(&domain.queue().0, &self.core);
                if !ours || self.is_untranslated(stream) {
                    return Err(AttachError::Mismatch);
                }
                self.hold_reserved(stream, &**domain)?;
                let target = Target::$stage {
                    context: domain.context(),
                    root: domain.table().root().get(),
                    levels: domain.table().format().levels,
                    domain: Hold(domain.clone()),
                };
                self.go(stream, pasid, target)
            }
        }
    };
}

/// Attachment to a domain of either stage.
trait AttachAs<D> {
    fn attach_as(&self, stream: StreamId, pasid: u32, domain: &Arc<D>) -> Result<(), AttachError>;
}

attach!(VtdSecondStage, Second);
attach!(VtdFirstStage, First);
